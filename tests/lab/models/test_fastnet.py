import pytest
import torch
from torch import nn

from tammes.lab.models.fastnet import FastNet, whitening_filters


def smooth_images(n: int) -> torch.Tensor:
    """Images whose neighboring pixels and channels are correlated, as in photographs."""
    torch.manual_seed(0)
    noise = torch.randn(n, 3, 20, 20) + torch.randn(n, 1, 20, 20)
    return nn.functional.avg_pool2d(noise, 3, stride=1, padding=1)


def test_whitened_patches_are_uncorrelated_with_variance_one():
    images = smooth_images(300)
    responses = nn.functional.conv2d(images, whitening_filters(images, eps=1e-9)).double()
    vectors = responses.permute(0, 2, 3, 1).flatten(0, 2)
    assert torch.allclose(vectors.T @ vectors / len(vectors), torch.eye(12).double(), atol=1e-3)


def test_eps_damps_directions_that_hardly_occur():
    grey = smooth_images(50)[:, :1].expand(-1, 3, -1, -1)  # eight of the twelve directions never occur
    filters = whitening_filters(grey, eps=5e-4)
    assert filters.flatten(1).norm(dim=1).max() <= 5e-4**-0.5 * 1.001


def test_calibration_sets_the_first_layer_to_both_signs_and_training_leaves_it():
    net = FastNet(3, (8, 16, 16))
    images = smooth_images(16)
    net.calibrate(images)
    first = net.whitening.weight.clone()
    assert torch.equal(first[:12], -first[12:])
    assert torch.equal(first[:12], whitening_filters(images))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1)
    net(images).square().mean().backward()
    optimizer.step()
    assert torch.equal(net.whitening.weight, first)


def test_convolutions_start_as_the_identity_on_their_first_channels():
    net = FastNet(3, (32, 40, 40))
    for conv in (m for m in net.groups.modules() if isinstance(m, nn.Conv2d)):
        x = torch.randn(2, conv.in_channels, 5, 5)
        assert torch.allclose(conv(x)[:, : conv.in_channels], x, atol=1e-6)


def test_batch_norm_learns_a_bias_and_no_scale():
    norms = [m for m in FastNet(3).modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 6
    assert all(m.bias.requires_grad and not m.weight.requires_grad for m in norms)


@pytest.mark.parametrize("least", [-0.17])
def test_features_are_bounded_below_as_stated(least):
    torch.manual_seed(0)
    z = FastNet(3, (8, 16, 16))(torch.randn(50, 3, 9, 9))
    assert least <= z.min() < 0

import pytest
import torch
from torch import nn

from tammes.lab.models import MODELS, build, embed
from tammes.lab.models.cnn4 import CNN4

RECTIFIED = {"cnn4", "cnn4-hidden", "cnn4-padded", "resnet18", "resnet34", "resnet-small", "timm/test_resnet"}
EVERY = [*MODELS, "timm/test_resnet", "timm/vit_tiny_patch16_224", "timm/test_efficientnet"]


def side(name: str) -> int:
    return 64 if name.startswith("timm") else 17


def small(name: str, embedding: int | None = None, channels: int = 3):
    torch.manual_seed(0)
    return build(name, in_channels=channels, image_size=side(name), embedding=embedding)


@pytest.mark.parametrize("embedding", [None, 7])
@pytest.mark.parametrize("name", EVERY)
def test_images_become_embeddings_of_the_width_stated(name, embedding):
    net = small(name, embedding).eval()
    images = torch.randn(3, 3, side(name), side(name))
    z = net(images)
    assert z.shape == (3, net.out_features)
    assert embedding is None or net.out_features == embedding
    assert torch.isfinite(z).all()
    assert net.nonnegative == (embedding is None and name in RECTIFIED)
    assert not net.nonnegative or (z >= 0).all()
    assert torch.allclose(net(images.contiguous(memory_format=torch.channels_last)), z, atol=1e-4)


@pytest.mark.parametrize("name", EVERY)
def test_a_step_reaches_every_trainable_weight(name):
    net = small(name, embedding=5)
    net(torch.randn(4, 3, side(name), side(name))).square().sum().backward()
    unreached = [n for n, p in net.named_parameters() if p.requires_grad and p.grad is None]
    assert not unreached


def test_convolutions_are_stored_channels_last():
    stored = [m.weight for m in small("resnet18").modules() if isinstance(m, nn.Conv2d)]
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in stored)


def test_other_channels_and_oblong_images():
    net = build("cnn4", in_channels=2, image_size=(28, 18))
    assert net(torch.randn(2, 2, 28, 18)).shape == (2, net.out_features) == (2, 64 * 5 * 3)
    fast = build("fastnet-half", in_channels=1, image_size=(9, 21))
    assert fast(torch.randn(2, 1, 9, 21)).shape == (2, 128)


def test_cnn4_is_the_function_the_paper_prints():
    torch.manual_seed(1)
    net = CNN4(1, (28, 28))
    weights = 32 * (9 + 1) + 2 * 32 + 64 * (32 * 9 + 1) + 2 * 64
    assert sum(p.numel() for p in net.parameters()) == weights
    conv1, norm1, _, _, conv2, norm2, _, _, _ = net.stages
    printed = nn.Sequential(
        conv1, norm1, nn.ReLU(), nn.MaxPool2d(2), conv2, norm2, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    )
    images = torch.randn(5, 1, 28, 28)
    weight = torch.randn(5, 1600)
    gradients = []
    for f in (net, printed):
        net.zero_grad()
        z = f(images)
        (z * weight).sum().backward()
        gradients.append([z.detach(), *(p.grad.clone() for p in net.parameters())])
    for ours, papers in zip(*gradients, strict=True):
        assert torch.equal(ours, papers)


def test_cnn4_with_a_hidden_layer_has_four_with_the_prototypes():
    torch.manual_seed(1)
    plain, hidden = CNN4(1, (28, 28)).eval(), CNN4(1, (28, 28), hidden=128).eval()
    hidden.load_state_dict(plain.state_dict(), strict=False)
    images = torch.randn(5, 1, 28, 28)
    linear = next(m for m in hidden.modules() if isinstance(m, nn.Linear))
    expected = linear(plain(images)).relu() / (1 + 1e-5) ** 0.5  # batch norm as it starts: variance 1
    torch.testing.assert_close(hidden(images), expected)


def test_the_padded_cnn4_keeps_the_resolution_and_starts_within_its_bounds():
    torch.manual_seed(0)
    net = build("cnn4-padded", in_channels=1, image_size=28)
    first, second = (m.weight for m in net.modules() if isinstance(m, nn.Conv2d))
    (linear,) = (m.weight for m in net.modules() if isinstance(m, nn.Linear))
    assert linear.shape == (128, 64 * 7 * 7)
    for weight, bound in (
        (first, (6 / 9) ** 0.5),  # Kaiming: sqrt(6 / fan in)
        (second, (6 / (32 * 9)) ** 0.5),
        (linear, (6 / (3136 + 128)) ** 0.5),  # Xavier: sqrt(6 / (fan in + fan out))
    ):
        assert 0.95 * bound < weight.abs().max() <= bound


@pytest.mark.parametrize(("name", "published"), [("resnet18", 11_173_962), ("resnet34", 21_282_122)])
def test_resnets_have_as_many_weights_as_published_for_cifar10(name, published):
    net = build(name, in_channels=3, image_size=32)
    classifier = 10 * 512 + 10
    assert sum(p.numel() for p in net.parameters()) + classifier == published


def test_embedded_with_their_mirror_images_left_is_not_told_from_right():
    net = small("fastnet-half").eval()
    images = torch.randn(3, 3, 17, 17)
    mirrored = images.flip(-1)
    assert torch.allclose(embed(net, images, flip=True), embed(net, mirrored, flip=True), atol=1e-6)
    assert not torch.allclose(net(images), net(mirrored), atol=1e-3)
    symmetric = images + mirrored
    assert torch.allclose(embed(net, symmetric, flip=True), net(symmetric), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet81", r"Unknown model 'resnet81'\. Did you mean resnet18\?"),
        ("timm/resnet5O", r"timm has no model 'resnet5O'\. Did you mean resnet50\?"),
        ("cnn4", r"cnn4 needs images of at least 10 x 10 pixels, got 8 x 8\. Upscale them"),
        ("fastnet", r"fastnet needs images of at least 9 x 9 pixels, got 8 x 8"),
        (
            "timm/vit_tiny_patch16_224",
            r"timm/vit_tiny_patch16_224 does not accept images of shape \(3, 8, 8\)",
        ),
    ],
)
def test_what_cannot_be_built_is_said_with_a_way_out(name, message):
    with pytest.raises(ValueError, match=message):
        build(name, in_channels=3, image_size=8)


def test_counts_must_be_positive():
    with pytest.raises(ValueError, match="embedding must be at least 1, got 0"):
        build("cnn4", in_channels=3, image_size=28, embedding=0)
    with pytest.raises(ValueError, match="in_channels must be at least 1, got 0"):
        build("cnn4", in_channels=0, image_size=28)

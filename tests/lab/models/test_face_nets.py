"""Networks for faces: as many weights as published, and the shapes that images take on the way."""

import pytest
import torch

from tammes.lab.models import build
from tammes.lab.models.iresnet import PreActivationBlock
from tammes.lab.models.mobilefacenet import MobileFaceNet


def weights_of(net) -> int:
    return sum(p.numel() for p in net.parameters())


def counted_iresnet(blocks: tuple[int, ...]) -> int:
    """Convolutions without bias; two numbers for each channel of a batch norm, one of a PReLU."""
    total, inputs = 3 * 64 * 9 + 3 * 64, 64
    for outputs, count in zip((64, 128, 256, 512), blocks, strict=True):
        for block in range(count):
            total += 2 * inputs + 9 * inputs * outputs + 3 * outputs + 9 * outputs * outputs + 2 * outputs
            if block == 0:
                total += inputs * outputs + 2 * outputs
            inputs = outputs
    return total + 2 * 512 + 512 * 7 * 7 * 512 + 512 + 2 * 512


@pytest.mark.parametrize(
    ("name", "blocks", "published_millions"),
    [
        ("iresnet18", (2, 2, 2, 2), 24.03),
        ("iresnet34", (3, 4, 6, 3), 34.14),
        ("iresnet50", (3, 4, 14, 3), 43.59),
        ("iresnet100", (3, 13, 30, 3), 65.16),
    ],
)
def test_iresnets_have_as_many_weights_as_insightfaces(name, blocks, published_millions):
    with torch.device("meta"):
        net = build(name, in_channels=3, image_size=112)
    assert weights_of(net) == counted_iresnet(blocks)
    assert weights_of(net) / 1e6 == pytest.approx(published_millions, abs=0.01)
    assert net.out_features == 512


def test_mobilefacenet_has_a_million_weights_with_the_papers_128_numbers():
    assert weights_of(MobileFaceNet(3, (112, 112), embedding=128)) / 1e6 == pytest.approx(0.99, abs=0.02)


@pytest.mark.parametrize(("name", "side", "map_side"), [("iresnet18", 112, 7), ("iresnet-mini", 64, 2)])
def test_the_last_map_keeps_places_apart(name, side, map_side):
    net = build(name, in_channels=3, image_size=side).eval()
    shapes = []
    net.out[1].register_forward_hook(lambda _, given, out: shapes.append(given[0].shape))
    with torch.no_grad():
        net(torch.randn(2, 3, side, side))
    assert shapes[0][2:] == (map_side, map_side)


def test_nothing_follows_the_sum_of_a_block():
    block = PreActivationBlock(4, 4, 1).eval()
    torch.nn.init.zeros_(block.residual[4].weight)
    images = torch.randn(2, 4, 6, 6)
    assert torch.allclose(block(images), images, atol=1e-6)


def test_the_embedding_is_normalized_over_the_batch_with_scale_one():
    net = build("iresnet-mini", in_channels=3, image_size=64, embedding=16)
    z = net(torch.randn(32, 3, 64, 64))
    assert torch.allclose(z.std(0, correction=0), torch.ones(16), atol=1e-2)
    assert not net.out[-1].weight.requires_grad

"""Cosines do not depend on the length of a vector, whatever float32 can hold."""

import pytest
import torch

from tammes import PrototypeHead, parse
from tammes._common import tensor_checks
from tammes.geometry import sphere
from tammes.geometry.sphere import normalize, safe_norm

LENGTHS = [1e-28, 1e-21, 1e-12, 1e12, 1e20, 1e30, 1e37]


@pytest.fixture(params=["cpu", "cuda", "other"])
def as_on(request, monkeypatch):
    """The norms as computed on each kind of device, though on the CPU; on the others no value can be read."""
    if request.param != "cpu":
        monkeypatch.setattr(tensor_checks, "readable", lambda *_: False)
    if request.param == "cuda":
        monkeypatch.setattr(sphere, "_scaled_norm", sphere._wide_norm)


@pytest.mark.usefixtures("as_on")
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_very_long_and_very_short_rows(length, dtype):
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    scaled = (rows.double() * length).to(dtype)
    expected = scaled.double().norm(dim=1, keepdim=True)
    torch.testing.assert_close(safe_norm(scaled).double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.usefixtures("as_on")
def test_zero_and_denormal_rows_stay_finite():
    rows = torch.tensor([[0.0, 0.0], [1e-42, 1e-43], [3.0, 4.0]], requires_grad=True)
    unit = normalize(rows)
    (gradient,) = torch.autograd.grad(unit.sum(), rows)
    assert unit[:2].abs().max() < 1e-40
    assert unit[2].tolist() == pytest.approx([0.6, 0.8])
    assert gradient.isfinite().all()


@pytest.mark.usefixtures("as_on")
@pytest.mark.parametrize("block_size", [None, 3, "auto"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("of", ["embeddings", "prototypes"])
def test_loss_and_gradients_do_not_depend_on_norms(of, length, block_size):
    torch.manual_seed(0)
    head = PrototypeHead(5, 7, parse("CosFace(s=8, m=0.2) + 0.5*R_sm + R_w"), block_size=block_size)
    z, labels = torch.randn(9, 5), torch.arange(9) % 7

    def numbers(z_scale, w_scale):
        rows = (z * z_scale).requires_grad_()
        with torch.no_grad():
            head.weight.mul_(w_scale)
        loss = head(rows, labels)
        of_rows, of_weight = torch.autograd.grad(loss, (rows, head.weight))
        with torch.no_grad():
            head.weight.div_(w_scale)
        return loss.double(), of_rows.double() * z_scale, of_weight.double() * w_scale

    expected = numbers(1.0, 1.0)
    found = numbers(length, 1.0) if of == "embeddings" else numbers(1.0, length)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_norm_of_a_row_does_not_depend_on_its_neighbors():
    rows = torch.randn(1000, 33, generator=torch.Generator().manual_seed(0))
    for other in (torch.zeros(1, 33), torch.full((1, 33), 1e30)):
        assert safe_norm(torch.cat([rows, other]))[:-1].equal(safe_norm(rows))

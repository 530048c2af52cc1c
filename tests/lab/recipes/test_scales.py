"""`tammes reproduce scales`: its gradients are those of autograd, its record has what its figure shows."""

import json

import pytest
import torch

from tammes.lab.cli import main
from tammes.losses import ArcFace, NormFace
from tammes.losses.advice import gradient_left


@pytest.mark.parametrize("term", [NormFace(scale=8), ArcFace(scale=16, margin=0.5)], ids=str)
@pytest.mark.parametrize("k", [2, 10])
def test_the_gradient_left_is_that_of_autograd(term, k):
    """Logits of a sample on its prototype whose cosines to the others are half-way to the simplex."""
    lead = k / (k - 1) / 2
    logits = torch.full((k,), term.scale * (1 - lead), dtype=torch.float64)
    logits[0] = term.scale * torch.cos(torch.tensor(getattr(term, "margin", 0.0), dtype=torch.float64))
    logits.requires_grad_()
    torch.nn.functional.cross_entropy(logits[None], torch.tensor([0])).backward()
    assert gradient_left(term, k, 2 * lead) == pytest.approx(-logits.grad[0].item(), rel=1e-6)


def test_the_record_and_the_figure(tmp_path, capsys):
    assert main(["reproduce", "scales", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "scales.json").read_text())
    curve = record["gradients"]["NormFace"]["10"]
    assert len(curve) == len(record["scales"])
    assert curve == sorted(curve, reverse=True)
    above = [g for s, g in zip(record["scales"], curve, strict=True) if s > record["advice"]["10"]["largest"]]
    assert above
    assert max(above) < 1e-6
    assert (tmp_path / "scales.png").stat().st_size > 10_000

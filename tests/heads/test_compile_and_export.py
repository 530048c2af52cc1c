"""`torch.compile(fullgraph=True)` and `torch.export` of a head, in a process without type checks."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tammes import MixedLabels, PrototypeHead, parse
from tammes.losses import CATALOGUE

SUM = parse("CosFace(s=8, m=0.2) + CE + 0.5*R_sm + 10*R_w + LMSoftmax(s=4, reduction='lse')")
ONE_OF_EACH = parse(
    "CE(label_smoothing=0.1) + Focal(gamma=0.5) + LSoftmax(m=2.5) + NormFace(s=8) + CosFace(s=8, m=0.2) +"
    "ArcFace(s=8, m=[0.1, 0.2, 0.3, 0.4, 0.5]) + SphereFace(s=8, m=4) + CombinedMargin(s=8, m1=1.2, m2=0.1) +"
    "GMSoftmax(s=8, alpha2=0.5) + LMSoftmax(s=8) + LDAM(s=8) + LAS + R_sm(form='mean') + R_w + MHE"
)
LABELS = torch.arange(9) % 5
COMPILER = any(map(shutil.which, ("g++", "clang++")))  # inductor writes C++


def step(forward, head: PrototypeHead, labels) -> list[list[float]]:
    """Loss, gradients and terms of one step."""
    embeddings = torch.randn(9, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    loss = forward(embeddings, labels)
    gradients = torch.autograd.grad(loss, (embeddings, head.weight))
    return [x.flatten().tolist() for x in (loss.detach(), *gradients, *head.terms.values())]


def eager_and_compiled(objective, labels, backend: str) -> list:
    """A step of each."""
    head = PrototypeHead(6, 5, objective, block_size=None, class_counts=[9, 8, 7, 6, 5])
    compiled = torch.compile(head, fullgraph=True, backend=backend)
    return [step(forward, head, labels) for forward in (head, compiled)]


def original_and_exported() -> list:
    """Logits of a model with a head, for another batch size than it was exported with."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), PrototypeHead(6, 5, SUM)).eval()
    program = torch.export.export(model, (torch.randn(2, 4),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    other = torch.randn(7, 4)
    return [forward(other).flatten().tolist() for forward in (model, program.module())]


def pairs() -> dict[str, list]:
    """What should agree, by name."""
    mixed = MixedLabels(LABELS, LABELS.roll(1), torch.full((9,), 0.3))
    return {
        "inductor": eager_and_compiled(SUM, LABELS, "inductor" if COMPILER else "aot_eager"),
        "every entry": eager_and_compiled(ONE_OF_EACH, LABELS, "eager"),
        "mixed labels": eager_and_compiled(SUM, mixed, "eager"),
        "soft targets": eager_and_compiled(SUM, nn.functional.one_hot(LABELS, 5).float(), "eager"),
        "export": original_and_exported(),
    }


@pytest.mark.slow
def test_compiled_and_exported_heads_say_the_same(tmp_path):
    assert {type(term) for _, term in ONE_OF_EACH.terms} == set(CATALOGUE)
    run = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": "cache", "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    results = json.loads((tmp_path / "pairs.json").read_text())
    assert len(results) == 5
    for eager, other in results.values():
        for expected, value in zip(eager, other, strict=True):
            assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)


if __name__ == "__main__":
    torch.manual_seed(0)
    Path("pairs.json").write_text(json.dumps(pairs()))

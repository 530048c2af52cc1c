"""`torch.compile(fullgraph=True)` and `torch.export` of a head, in a process without type checks."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.torch_version import TorchVersion

from tammes import MixedLabels, PrototypeHead, parse
from tammes.losses import CATALOGUE

SUM = parse("CosFace(s=8, m=0.2) + CE + 0.5*R_sm + 10*R_w + LMSoftmax(s=4, reduction='lse')")
ADAPTIVE = SUM + parse("AdaCos")
ONE_OF_EACH = parse(
    "CE(label_smoothing=0.1) + Focal(gamma=0.5) + LSoftmax(m=2.5) + NormFace(s=8) + CosFace(s=8, m=0.2) +"
    "ArcFace(s=8, m=[0.1, 0.2, 0.3, 0.4, 0.5]) + SphereFace(s=8, m=4) + CombinedMargin(s=8, m1=1.2, m2=0.1) +"
    "GMSoftmax(s=8, alpha2=0.5) + LMSoftmax(s=8) + LDAM(s=8) + LAS + R_sm(form='mean') + R_w + MHE +"
    "BalancedSoftmax + LogitAdjusted(tau=2) + VS(normalize=True, s=8) + AdaFace(s=8) + MagFace(s=8) +"
    "ElasticFace(s=8, std=0) + CurricularFace(s=8) + MVSoftmax(s=8) + Circle(s=8) +"
    "AdaCos + NormFace(s=Learnable(6))"
)  # std=0: an eager forward first draws the number that marks it, so its random margins would be others
SHORT = parse("CosFace(s=8, m=0.2) + 0.5*R_sm")  # inductor's C++ takes seconds for each kernel
WARM_UPS = [
    "ArcFace(s=8, m={0}) + 0.5*R_sm",
    "LDAM(s=8, max_margin={0})",
    "CombinedMargin(s=8, m1=1, m2={0}, m3={0})",
]
LABELS = torch.arange(9) % 5
COMPILER = any(map(shutil.which, ("g++", "clang++")))  # inductor writes C++


def step(forward, head: PrototypeHead, labels) -> list[list[float]]:
    """Loss, gradients and terms of one step."""
    embeddings = torch.randn(9, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    if head.running is not None:
        head.running.reset()
    torch.manual_seed(0)  # of random margins
    loss = forward(embeddings, labels)
    gradients = torch.autograd.grad(loss, (embeddings, *head.parameters()))
    return [x.flatten().tolist() for x in (loss.detach(), *gradients, *head.terms.values())]


def eager_and_compiled(objective, labels, backend: str) -> list:
    """A step of each; the compiled one comes first, so that nothing was prepared by an eager one."""
    fresh = copy.deepcopy(objective)
    head = PrototypeHead(6, 5, fresh, block_size=None, class_counts=[9, 8, 7, 6, 5])
    compiled = step(torch.compile(head, fullgraph=True, backend=backend), head, labels)
    return [step(head, head, labels), compiled]


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
        "inductor": eager_and_compiled(SHORT, LABELS, "inductor" if COMPILER else "aot_eager"),
        "aot": eager_and_compiled(ADAPTIVE, LABELS, "aot_eager"),
        "every entry": eager_and_compiled(ONE_OF_EACH, LABELS, "eager"),
        "mixed labels": eager_and_compiled(ADAPTIVE, mixed, "eager"),
        "soft targets": eager_and_compiled(SUM, nn.functional.one_hot(LABELS, 5).float(), "eager"),
        "export": original_and_exported(),
    }


def graphs_of_a_warm_up(text: str) -> int:
    """How many graphs are compiled for a head whose margin grows from step to step."""
    torch.compiler.reset()
    counter = CompileCounter()
    head = PrototypeHead(6, 5, text.format(0.1), block_size=None, class_counts=[9, 8, 7, 6, 5])
    compiled = torch.compile(head, fullgraph=True, backend=counter)
    for margin in (0.1, 0.2, 0.3, 0.4):
        head.objective = parse(text.format(margin))
        for compared in zip(step(compiled, head, LABELS), step(head, head, LABELS), strict=True):
            torch.testing.assert_close(*map(torch.tensor, compared))
    return counter.frame_count


@pytest.mark.slow
@pytest.mark.skipif(
    TorchVersion(torch.__version__) < (2, 15),
    reason="older versions cannot trace a whole head: 2.9 and 2.10 fail, 2.11 to 2.14 were not tried",
)
def test_compiled_and_exported_heads_agree(tmp_path):
    assert {type(term) for _, term in ONE_OF_EACH.weighted_terms} == set(CATALOGUE)
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
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results["pairs"]) == 6
    for eager, other in results["pairs"].values():
        for expected, value in zip(eager, other, strict=True):
            assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert max(results["graphs of a warm-up"]) <= 2  # one for the first margin, one for any other


if __name__ == "__main__":
    torch.manual_seed(0)
    found = {"pairs": pairs(), "graphs of a warm-up": [graphs_of_a_warm_up(text) for text in WARM_UPS]}
    Path("results.json").write_text(json.dumps(found))

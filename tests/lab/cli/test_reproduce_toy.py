"""`tammes reproduce toy` through its entry point, with few epochs of SGD and descent to the end."""

import json
import re
import shutil
import subprocess
import sys

import jaxtyping
import pytest
import torch
from PIL import Image

from tammes.lab.cli import main
from tammes.lab.recipes import toy


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Without shape checks, which would double the time of the descents; these have their own tests."""
    out, before = tmp_path_factory.mktemp("toy"), jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        assert main(["reproduce", "toy", "--epochs", "20", "--out", str(out)]) == 0
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
    return out


@pytest.fixture(scope="module")
def rows(written):
    return json.loads((written / "toy.json").read_text())["rows"]


def found(rows, k, d, loss, method):
    of_size = [row for row in rows if (row["k"], row["d"], row["loss"]) == (k, d, loss)]
    (row,) = (row for row in of_size if row["method"].startswith(method))
    return row["class_margin"]


def test_growing_scale_reaches_the_best_known_angles(rows):
    best = {(8, 3): 74.858492, (7, 2): 360 / 7, (7, 3): 77.869542, (13, 3): 57.136703}
    for (k, d), angle in best.items():
        reached = found(rows, k, d, "LM-Softmax (lse)", "descent, growing s")
        assert angle - 1e-3 < reached < angle + 1e-5


def test_three_losses_share_one_optimum_that_depends_on_s_alone(rows):
    for loss in ("NormFace", "CosFace", "LM-Softmax (mean)"):
        assert found(rows, 8, 3, loss, "descent") == pytest.approx(74.47, abs=0.01)  # erratum 12, s = 30


def test_the_printed_lm_softmax_falls_short_where_its_lse_does_not(rows):
    assert found(rows, 7, 2, "LM-Softmax (mean)", "descent") < 1.0  # classes coincide; erratum 2
    assert found(rows, 13, 3, "LM-Softmax (mean)", "descent") < 40


def test_the_papers_numbers_stand_beside_ours(rows):
    printed = {r["loss"]: r["printed"] for r in rows if r["method"].startswith("SGD")}
    assert printed == {
        "NormFace": 68.50,
        "CosFace": 71.86,
        "ArcFace": 67.74,
        "LM-Softmax (mean)": 74.46,
        "LM-Softmax (lse)": None,
    }


def test_the_record_says_how_it_was_made(written):
    record = json.loads((written / "toy.json").read_text())
    assert record["config"]["epochs"] == 20
    assert {"versions", "machine", "date", "seconds"} <= record.keys()


def test_the_spheres_are_a_picture_and_a_page_that_needs_no_network(written):
    with Image.open(written / "toy.png") as picture:
        assert picture.width > picture.height > 200
    page = (written / "toy.html").read_text()
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']?(https?:)?//", page)


def test_a_finished_loss_is_not_trained_again_and_its_curve_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tammes.lab.recipes.toy.ANNEALING", 5)
    words = ["reproduce", "toy", "--epochs", "12", "--losses", "NormFace", "--out", str(tmp_path)]
    assert main(words) == 0
    first = capsys.readouterr().out
    record = json.loads((tmp_path / "toy" / "normface-12-seed0.json").read_text())
    assert len(record["curve_deg"]) == 2
    assert not (tmp_path / "toy.json").exists()
    monkeypatch.setattr("tammes.lab.recipes.toy.sgd", None)
    assert main(words) == 0
    assert capsys.readouterr().out.strip() == first.strip()


def by_torch(objective, epochs):
    """The paper's recipe with torch's optimizer and scheduler."""
    generator = torch.Generator().manual_seed(3)
    prototypes = torch.randn(8, 3, generator=generator).requires_grad_()
    features = torch.randn(80, 3, generator=generator).requires_grad_()
    optimizer = torch.optim.SGD([prototypes, features], lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=toy.ANNEALING)
    for _ in range(epochs):
        optimizer.zero_grad()
        objective(features, prototypes, torch.arange(8).repeat(10)).backward()
        optimizer.step()
        schedule.step()
    return prototypes.detach().double(), features.detach().double()


def test_sgd_is_torchs_beyond_the_turn_of_its_schedule(monkeypatch):
    monkeypatch.setattr(toy, "ANNEALING", 20)
    objective = toy.OBJECTIVES["ArcFace"]
    ours = toy.sgd(objective, 8, 3, epochs=50, seed=3, tick=lambda epoch: None)
    prototypes, features = by_torch(objective, 50)
    torch.testing.assert_close(ours.prototypes, prototypes, rtol=0, atol=1e-4)
    torch.testing.assert_close(ours.features, features, rtol=0, atol=1e-4)


COMPILED = """
import json, torch
from tammes.lab.recipes import toy
calls, compile_step = [], torch.compile
torch.compile = lambda *a, **k: calls.append(1) or compile_step(*a, **k)
ends = []
for toy.COMPILE_FROM in (10, 11):
    ends.append(toy.sgd(toy.OBJECTIVES["ArcFace"], 8, 3, epochs=10, seed=3, tick=lambda epoch: None))
print(json.dumps([calls, *((ends[0][i] - ends[1][i]).abs().max().item() for i in (0, 1))]))
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="without a C++ compiler the step is not compiled")
def test_the_compiled_step_is_the_plain_one():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=True)
    calls, prototypes, features = json.loads(done.stdout)
    assert calls == [1]  # from COMPILE_FROM epochs on
    assert prototypes < 1e-5
    assert features < 1e-5


def test_no_epochs_is_refused(tmp_path, capsys):
    assert main(["reproduce", "toy", "--epochs", "0", "--out", str(tmp_path)]) == 1
    assert "epochs must be at least 1, got 0" in capsys.readouterr().err

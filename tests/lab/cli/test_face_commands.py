"""`tammes evaluate` on a run that learns people and is verified on pairs of others."""

import json

import numpy as np
import pytest
from PIL import Image

from tammes.lab.cli import main

COLORS = {"Ann": (140, 90, 90), "Bob": (90, 140, 90), "Cid": (90, 90, 140), "Dan": (140, 140, 90)}
PAIRS = (("Ann", "Ann"), ("Bob", "Bob"), ("Ann", "Bob"), ("Cid", "Dan"))


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    """Four people, noisy patches of color, and a list of pairs of them that calls some same wrongly."""
    folder, random = tmp_path_factory.mktemp("faces") / "faces", np.random.default_rng(3)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for i in range(1, 9):
            pixels = np.array(color) + random.integers(-60, 60, (12, 14, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{name}_{i:04d}.png")
    lines = [
        f"{a}/{a}_{i:04d}.png,{b}/{b}_{i + 1:04d}.png,{int(a == b or i == 7)}"
        for i in range(1, 8)
        for a, b in PAIRS
    ]
    (folder / "pairs.csv").write_text("\n".join(["first,second,same", *lines]) + "\n")
    return folder


@pytest.fixture(scope="module")
def run_on_faces(faces, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "faces"
    words = ["train", str(faces), "--model", "cnn4", "--epochs", "2", "--batch-size", "8", "--out", str(out)]
    assert main(words) == 0
    return out


@pytest.mark.filterwarnings("ignore:.*people in pairs are among those")
def test_evaluation_has_the_numbers_of_the_pairs_that_the_result_has(run_on_faces, capsys):
    recorded = json.loads((run_on_faces / "result.json").read_text())["metrics"]
    assert 0 < recorded["pairs_auc"] < 1
    capsys.readouterr()
    assert main(["evaluate", str(run_on_faces), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name for name in recorded if name.startswith("pairs_")} <= set(found)
    for name, value in recorded.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name


@pytest.mark.filterwarnings("ignore:.*people in pairs are among those")
def test_the_table_shows_them_too_and_training_images_have_none(run_on_faces, capsys):
    recorded = json.loads((run_on_faces / "result.json").read_text())["metrics"]
    capsys.readouterr()
    assert main(["evaluate", str(run_on_faces)]) == 0
    said = capsys.readouterr().out
    assert "pairs" in said
    assert f"{100 * recorded['pairs_auc']:.2f}" in said
    assert main(["evaluate", str(run_on_faces), "--split", "train", "--json"]) == 0
    assert "pairs_auc" not in json.loads(capsys.readouterr().out)

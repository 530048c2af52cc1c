"""A run with several prototypes per class, through every command that reads its prototypes."""

import json

import numpy as np
import pytest
import torch

from tammes import PrototypeHead, load_head
from tammes.lab.cli import main
from tammes.lab.training import RunFolder

SETTINGS = ["--model", "cnn4", "--embedding", "5", "--epochs", "3", "--batch-size", "9", "--seed", "1"]


@pytest.fixture(scope="module")
def sub_centers(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "sub-centers"
    words = ["train", str(photos), *SETTINGS, "--centers", "3", "--out", str(out)]
    assert main([*words, "--prototype-init", "linear"]) == 0
    return out


def test_the_record_has_the_margin_between_classes(sub_centers):
    head = RunFolder(sub_centers).classifier().head
    assert head.weight.shape == (3, 3, 5)
    metrics = RunFolder(sub_centers).finished()["metrics"]
    assert metrics["class_margin_deg"] == pytest.approx(np.degrees(head.class_margin().item()), rel=1e-5)
    assert metrics["accuracy"] > 0.5
    assert metrics["sample_margin"] <= metrics["sample_margin_ceiling"]


@pytest.mark.parametrize("command", ["evaluate", "train --resume --out"])
def test_commands_that_print_the_result(command, sub_centers, capsys):
    metrics = RunFolder(sub_centers).finished()["metrics"]
    assert main([*command.split(), str(sub_centers), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.get("metrics", found)["sample_margin"] == pytest.approx(metrics["sample_margin"], rel=1e-5)


@pytest.mark.parametrize("command", ["report", "inspect"])
def test_pages_show_the_closest_prototypes(command, sub_centers, tmp_path):
    page = tmp_path / "page.html"
    assert main([command, str(sub_centers), "--out", str(page)]) == 0
    assert "the cosine of two prototypes, the closest ones of the two classes." in page.read_text()


def test_embeddings_can_be_inspected(sub_centers, photos, tmp_path, capsys):
    target = tmp_path / "z.npz"
    assert main(["embed", str(sub_centers), str(photos), "--out", str(target)]) == 0
    stored = np.load(target)
    assert stored["prototypes"].shape == (3, 3, 5)
    capsys.readouterr()
    assert main(["inspect", str(target), "--json"]) == 0
    cosines = np.einsum("nd,kcd->nkc", stored["embeddings"], _units(stored["prototypes"])).max(2)
    right = stored["classes"][cosines.argmax(1)] == stored["labels"]
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(right.mean())


def _units(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_prototypes_are_exported_and_imported(sub_centers, tmp_path, capsys):
    weight = RunFolder(sub_centers).classifier().head.weight
    for name in ("head.npz", "head.safetensors", "head.pt"):
        assert main(["head", "export", str(sub_centers), str(tmp_path / name)]) == 0
        assert "weight (3, 3, 5)" in capsys.readouterr().out
        checkpoint = tmp_path / f"from-{name}"
        assert main(["head", "import", str(tmp_path / name), "--to", str(checkpoint)]) == 0
        head = PrototypeHead(5, 3, "CE", centers=3)
        load_head(checkpoint, head)
        assert torch.equal(head.weight, weight)


def test_a_classifier_is_exported(sub_centers, tmp_path):
    target = tmp_path / "model.safetensors"
    assert main(["export", str(sub_centers), "--format", "safetensors", "--to", str(target)]) == 0


def test_a_later_run_starts_from_as_many_prototypes(sub_centers, photos, tmp_path, capsys):
    words = ["train", str(photos), *SETTINGS, "--start", str(sub_centers), "--learns", "nothing"]
    assert main([*words, "--centers", "3", "--out", str(tmp_path / "same")]) == 0
    same = RunFolder(tmp_path / "same").classifier().head
    assert torch.equal(same.weight, RunFolder(sub_centers).classifier().head.weight)
    assert main([*words, "--out", str(tmp_path / "one")]) == 1
    assert "has centers=3, this run centers=1. Pass --fresh-prototypes" in capsys.readouterr().err


def test_new_classes_get_prototypes_away_from_the_others(sub_centers):
    from tammes.lab.training.warm_start import _by_name

    known = RunFolder(sub_centers).classifier().head.weight.detach()
    rows = _by_name(("red", "violet", "blue"), ("blue", "green", "red"), known, seed=0)
    assert torch.equal(rows[0], known[2])
    assert torch.equal(rows[2], known[0])
    assert rows[1].isfinite().all()
    assert (rows[1].norm(dim=-1) > 0).all()


def test_packed_prototypes_are_one_per_class(photos, tmp_path, capsys):
    words = ["train", str(photos), "--centers", "2", "--prototype-init", "packed"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 1
    assert "prototype_init='packed' places one prototype per class, got centers=2." in capsys.readouterr().err

"""Every command through `main`, on a run trained by it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tammes.lab.cli import main
from tammes.lab.cli.train import Train
from tammes.lab.inference.predictor import Predictor
from tammes.lab.training import RunFolder
from tammes.lab.training.run_folder import read_tensors


def said(capsys, *words: str):
    """What a command prints as JSON."""
    assert main([*words]) == 0
    return json.loads(capsys.readouterr().out)


def test_train_prints_where_the_run_is_and_how_good(run, photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        words = ["train", str(photos), "--model", "cnn4", "--epochs", "1"]
        assert main(words) == 0
        captured = capsys.readouterr()
        assert f"Run folder: runs/photos-{number}" in captured.out
        assert "m_cls" in captured.out
        assert "epoch 1" in captured.err


def test_a_stored_config_with_flags_over_it(run, tmp_path, capsys):
    config = str(run / "config.json")
    same = said(capsys, "train", "--config", config, "--out", str(tmp_path / "same"), "--json")
    stored = RunFolder(run).result
    assert stored is not None
    assert same["metrics"] == stored["metrics"]
    words = ["--config", config, "--out", str(tmp_path / "other"), "--json"]
    other = said(capsys, "train", *words, "--seed", "5", "--objective", "CE")
    assert (other["seed"], other["config"]["objective"], other["config"]["epochs"]) == (5, "CE", 6)
    assert other["config"]["unit_prototypes"] is False  # it follows from the objective


def test_resume_needs_no_other_flags_and_refuses_contrary_ones(run, photos, capsys):
    again = said(capsys, "train", "--resume", "--out", str(run), "--json")
    assert again == RunFolder(run).result
    assert main(["train", str(photos), "--resume", "--out", str(run), "--lr", "0.7"]) == 1
    assert "lr=0.002, not 0.7" in capsys.readouterr().err
    assert main(["train", str(photos), "--out", str(run)]) == 1
    assert "already contains a run" in capsys.readouterr().err
    assert main(["train", str(photos), "--resume"]) == 2
    assert "Pass it with --out" in capsys.readouterr().err


def test_a_flag_overrides_a_preset_even_with_the_value_of_its_default():
    """A preset has batch_size=64 and neck=True; the defaults are 128 and, for people, False."""
    words = ["--preset", "reid-laptop", "--batch-size", "128", "--no-neck", "--schedule=step"]
    merged = Train.from_args(words)
    assert (merged.batch_size, merged.neck, merged.schedule) == (128, False, "step")
    assert (merged.data, merged.triplet, merged.lr) == ("market1501", 1.0, 2e-3)
    assert Train.from_args(["people", "--preset", "reid-laptop"]).data == "people"


def test_a_neck_is_asked_for_refused_or_left_open():
    given = {
        words: Train.from_args(["digits", *words.split()]).neck
        for words in ("--neck --seed 1", "--no-neck", "")
    }
    assert given == {"--neck --seed 1": True, "--no-neck": False, "": None}


def test_train_without_data_is_a_usage_error(capsys):
    assert main(["train", "--epochs", "3"]) == 2
    assert "tammes train DATA" in capsys.readouterr().err


def test_a_run_never_lies_among_the_images(photos, tmp_path, capsys, monkeypatch):
    shutil.copytree(photos, tmp_path / "photos")
    monkeypatch.chdir(tmp_path / "photos")
    assert main(["train", "."]) == 1
    assert "run folder runs/photos-1 is inside the data" in capsys.readouterr().err
    assert sorted(p.name for p in (tmp_path / "photos").iterdir()) == ["blue", "green", "red"]


def test_a_start_that_fails_leaves_no_run_behind(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    words = ["train", str(photos), "--model", "cnn4", "--epochs", "1", "--out", str(tmp_path / "run")]
    assert main([*words, "--track", "tensorboard"]) == 1
    assert "TensorBoard is not installed" in capsys.readouterr().err
    assert main(words) == 0


def test_a_config_from_a_newer_version_is_refused(run, tmp_path, capsys):
    stored = json.loads((run / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stored | {"format": 99, "tammes": "9.0"}))
    assert main(["train", "--config", str(tmp_path / "config.json")]) == 1
    assert "was written by tammes 9.0" in capsys.readouterr().err


def test_ctrl_c_on_the_real_command_leaves_a_checkpoint_and_says_how_to_resume(photos, tmp_path):
    words = ["train", str(photos), "--model", "cnn4", "--epochs", "5000", "--log-every", "1", "--out", "run"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tammes", *words],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = tmp_path / "run" / "log.jsonl"
    deadline = time.monotonic() + 120
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1].endswith(": tammes train --resume --out run")
    assert "Traceback" not in errors
    assert RunFolder(tmp_path / "run").checkpoint() is not None


def test_evaluate_repeats_the_numbers_of_the_run(run, capsys):
    stored = RunFolder(run).result
    assert stored is not None
    found = said(capsys, "evaluate", str(run), "--json")
    classes = found.pop("classes")
    assert found == stored["metrics"]
    assert [row["class"] for row in classes] == ["blue", "green", "red"]
    arrays = np.load(run / "margins.npz")
    assert [row["gamma"] for row in classes] == pytest.approx(arrays["class_gamma"].tolist())
    assert main(["evaluate", str(run), "--worst", "2"]) == 0
    assert "worst classes" in capsys.readouterr().out


def test_evaluate_takes_other_data_by_the_names_of_its_classes(run, tmp_path, capsys):
    """Two of the three classes, so that label 1 here is label 2 there."""
    for name, kind in (("blue", 2), ("red", 0)):
        for i in range(10):
            folder = tmp_path / "other" / name
            folder.mkdir(parents=True, exist_ok=True)
            pixels = np.zeros((12, 14, 3), np.uint8)
            pixels[..., kind] = 200 + i
            Image.fromarray(pixels).save(folder / f"{i}.png")
    found = said(capsys, "evaluate", str(run), str(tmp_path / "other"), "--json")
    assert found["accuracy"] == 1.0
    assert found["classes"][1]["accuracy"] is None  # there is no green one
    (tmp_path / "other" / "red").rename(tmp_path / "other" / "crimson")
    assert main(["evaluate", str(run), str(tmp_path / "other")]) == 1
    assert "not trained on: 'crimson'" in capsys.readouterr().err


def test_evaluate_finds_named_data_in_the_run_s_root_or_a_given_one(few_digits, tmp_path, capsys):
    root, out = few_digits(40), str(tmp_path / "run")
    words = ["train", "mnist", "--data-root", str(root), "--model", "cnn4", "--epochs", "1", "--out", out]
    assert main(words) == 0
    capsys.readouterr()
    found = [said(capsys, "evaluate", out, "--json"), said(capsys, "evaluate", out, "mnist", "--json")]
    moved = shutil.copytree(root, tmp_path / "moved")
    found += [
        said(capsys, "evaluate", out, *data, "--data-root", str(moved), "--json") for data in ([], ["mnist"])
    ]
    assert found == found[:1] * 4
    assert main(["evaluate", out, "mnist", "--data-root", str(tmp_path)]) == 1
    assert f"in {tmp_path}" in capsys.readouterr().err


def test_class_counts_are_printed_and_what_is_measured_by_them(tmp_path, capsys):
    words = ["train", "digits", "--model", "cnn4", "--epochs", "1"]
    assert main([*words, "--imbalance", "long_tailed:2", "--out", str(tmp_path / "mild")]) == 0
    counts = ", ".join(map(str, RunFolder(tmp_path / "mild").facts.class_counts))
    assert f"Training images by class: {counts}\n" in capsys.readouterr().out
    assert main([*words, "--imbalance", "long_tailed:9", "--out", str(tmp_path / "imbalanced")]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("Accuracy of", "Exp"))]
    assert len(shown) == 2
    assert main(["evaluate", str(tmp_path / "imbalanced")]) == 0
    printed = capsys.readouterr().out
    assert all(line in printed for line in shown)


def test_evaluate_weights_best_are_the_best(run, capsys):
    stored = RunFolder(run).result
    assert stored is not None
    best = said(capsys, "evaluate", str(run), "--weights", "best", "--json")
    assert best["accuracy"] == stored["best"]["accuracy"]


def test_predict_names_the_classes_of_files_and_folders(run, photos, capsys):
    files = [str(photos / name / "3.png") for name in ("red", "blue")]
    assert main(["predict", str(run), *files]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [path for path, _ in lines] == files
    assert [answer.split()[0] for _, answer in lines] == ["red", "blue"]
    assert main(["predict", str(run), str(photos / "green"), "--top", "3", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 15
    for row in rows:
        assert row["classes"][0]["class"] == "green"
        assert sum(c["probability"] for c in row["classes"]) == pytest.approx(1.0)


def test_predict_continues_after_an_unreadable_image(run, photos, tmp_path, capsys):
    (tmp_path / "broken.png").write_bytes((photos / "red" / "1.png").read_bytes()[:60])
    grey = tmp_path / "grey.png"
    Image.fromarray(np.full((30, 20), 40000, np.uint16)).save(grey)
    names = ("broken.png", "grey.png", "missing.png")
    files = [*(str(tmp_path / name) for name in names), str(photos / "red" / "2.png")]
    assert main(["predict", str(run), *files]) == 1
    captured = capsys.readouterr()
    assert [line.split("\t")[0] for line in captured.out.splitlines()] == [files[1], files[3]]
    assert [f"cannot read {name}" in captured.err for name in files] == [True, False, True, False]


def test_predict_refuses_more_classes_than_there_are_and_no_images(run, tmp_path, capsys):
    assert main(["predict", str(run), "x.png", "--top", "4"]) == 1
    assert "at most 3, the number of classes" in capsys.readouterr().err
    assert main(["predict", str(run), str(tmp_path)]) == 1
    assert "No images found in" in capsys.readouterr().err


@pytest.fixture(params=["", "--test-flip"])
def answering(request, run, photos, tmp_path_factory):
    """A run that looks at images, or at images and their mirror images."""
    if not request.param:
        return run
    out = tmp_path_factory.mktemp("flipped") / "run"
    assert (
        main(["train", str(photos), "--model", "cnn4", "--epochs", "2", "--test-flip", "--out", str(out)])
        == 0
    )
    return out


def test_exported_to_onnx_a_run_predicts_the_same(answering, photos, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    files = [str(photos / kind / f"{i}.png") for kind in ("red", "green") for i in range(3)]
    capsys.readouterr()
    assert main(["predict", str(answering), *files, "--top", "3", "--json"]) == 0
    rows = [json.loads(line)["classes"] for line in capsys.readouterr().out.splitlines()]
    target = tmp_path / "model.onnx"
    assert main(["export", str(answering), "--format", "onnx", "--to", str(target)]) == 0
    session = onnxruntime.InferenceSession(target)
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    (probabilities,) = session.run(["probabilities"], {"images": pixels})
    for found, expected in zip(probabilities.tolist(), rows, strict=True):
        given = {row["class"]: row["probability"] for row in expected}
        assert dict(zip(classes, found, strict=True)) == pytest.approx(given, abs=1e-4)


def test_export_to_onnx_computes_what_the_run_does(run, photos, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    target = tmp_path / "model.onnx"
    assert main(["export", str(run), "--format", "onnx", "--to", str(target)]) == 0
    session = onnxruntime.InferenceSession(target)
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    pictures = [np.asarray(Image.open(photos / c / f"{i}.png")) for c in ("red", "green") for i in range(3)]
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2) / 255
    folder = RunFolder(run)
    classifier, facts = folder.classifier(), folder.facts
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (facts.mean, facts.std))
    with torch.no_grad():
        embeddings = classifier.backbone((pixels - mean) / std)
        logits = classifier.head(embeddings)
    for n in (1, 5):  # any number of images
        found = session.run(["logits", "embeddings"], {"images": np.stack(pictures[:n])})
        np.testing.assert_allclose(found[0], logits[:n], atol=1e-4)
        np.testing.assert_allclose(found[1], embeddings[:n], atol=1e-4)
    assert [classes[i] for i in found[0].argmax(1)] == ["red"] * 3 + ["green"] * 2


def test_an_export_says_how_to_prepare_images(run, tmp_path):
    onnx = pytest.importorskip("onnx")
    target = tmp_path / "model.onnx"
    assert main(["export", str(run), "--format", "onnx", "--to", str(target)]) == 0
    described, facts = json.loads((tmp_path / "model.json").read_text()), RunFolder(run).facts
    channels, height, width = facts.shape
    how = described["preprocessing"]
    assert (how["resize"]["height"], how["resize"]["width"]) == (height, width)
    assert how["color_order"] == "RGB"
    assert (how["mean"], how["std"]) == (list(facts.mean), list(facts.std))
    assert described["input"]["shape"] == ["n", height, width, channels]
    assert described["classes"] == list(facts.classes)
    stored = {entry.key: entry.value for entry in onnx.load(target).metadata_props}
    assert json.loads(stored["preprocessing"]) == how
    assert main(["export", str(run), "--format", "onnx", "--to", str(tmp_path / "model.json")]) == 1


def test_embeddings_of_class_folders_can_be_inspected(run, photos, tmp_path, capsys):
    target = tmp_path / "z.npz"
    assert main(["embed", str(run), str(photos), "--out", str(target)]) == 0
    stored = np.load(target)
    assert stored["labels"].tolist() == [name.split("/")[0] for name in stored["files"].tolist()]
    capsys.readouterr()
    assert main(["inspect", str(target), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    folder = RunFolder(run)
    predicted = [
        p.classes[0][0] for p in Predictor(folder).predict([str(photos / f) for f in stored["files"]])
    ]
    share = np.mean(stored["labels"] == np.array(predicted))
    assert found["accuracy"] == pytest.approx(share)  # by the run's own prototypes
    assert found["class_margin_deg"] == pytest.approx(folder.finished()["metrics"]["class_margin_deg"])


def test_embeddings_as_parquet_are_those_of_npz(run, photos, tmp_path, capsys, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    for form in ("npz", "parquet"):
        assert main(["embed", str(run), str(photos), "--format", form]) == 0
    assert "embeddings.parquet: 45 x " in capsys.readouterr().out
    table, arrays = parquet.read_table("embeddings.parquet"), np.load("embeddings.npz")
    assert table.column_names == ["file", "label", "vector"]
    assert table["file"].to_pylist() == arrays["files"].tolist()
    assert table["label"].to_pylist() == arrays["labels"].tolist()
    assert np.array_equal(np.stack(table["vector"].to_numpy()), arrays["embeddings"])
    assert str(table.schema.field("vector").type).startswith("fixed_size_list")


def test_parquet_without_labels_and_without_pyarrow(run, photos, tmp_path, capsys, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    words = [
        "embed",
        str(run),
        str(photos / "red"),
        "--format",
        "parquet",
        "--out",
        str(tmp_path / "z.parquet"),
    ]
    assert main(words) == 0
    assert set(parquet.read_table(tmp_path / "z.parquet")["label"].to_pylist()) == {None}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(words) == 1
    assert 'pip install "tammes[parquet]"' in capsys.readouterr().err


def test_embeddings_of_other_folders_have_their_labels_or_none(run, photos, tmp_path):
    others, flat = tmp_path / "others", tmp_path / "flat"
    shutil.copytree(photos / "red", others / "crimson")
    shutil.copytree(photos / "green", others / "lime")
    shutil.copytree(photos / "red", flat)
    for folder, expected in ((others, {"files", "embeddings", "labels"}), (flat, {"files", "embeddings"})):
        assert main(["embed", str(run), str(folder), "--out", str(tmp_path / "z.npz")]) == 0
        assert set(np.load(tmp_path / "z.npz").files) == expected


def test_search_knows_right_from_wrong_in_class_folders(run, photos, tmp_path, capsys):
    words = ["--gallery", str(photos), "--top", "40", "--json", "--out", str(tmp_path / "found.png")]
    copied = tmp_path / "red" / "query.png"  # elsewhere, in a folder of the same name
    copied.parent.mkdir()
    shutil.copy(photos / "red" / "0.png", copied)
    for query in (photos / "red" / "0.png", copied):
        capsys.readouterr()
        assert main(["search", str(run), str(query), *words]) == 0
        found = json.loads(capsys.readouterr().out)["found"]
        assert {hit["right"] for hit in found} == {True, False}
        assert all(hit["right"] == (Path(hit["image"]).parent.name == "red") for hit in found)
    stray = shutil.copy(photos / "red" / "0.png", tmp_path / "query.png")
    assert main(["search", str(run), str(stray), *words]) == 0
    assert {hit["right"] for hit in json.loads(capsys.readouterr().out)["found"]} == {None}


def test_export_to_safetensors_holds_the_weights_and_what_they_mean(run, tmp_path, capsys):
    from safetensors import safe_open

    assert main(["export", str(run), "--format", "safetensors"]) == 0
    path, described = capsys.readouterr().out.splitlines()
    assert path == str(run / "model.safetensors")
    assert json.loads(Path(described).read_text())["classes"] == ["blue", "green", "red"]
    weights = RunFolder(run).weights()
    stored = read_tensors(run / "model.safetensors")
    assert all(torch.equal(stored[name], weights[name]) for name in weights)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["classes"]) == ["blue", "green", "red"]
    assert json.loads(metadata["config"])["model"] == "cnn4"


def test_compare_puts_runs_side_by_side(run, photos, tmp_path, capsys):
    other = tmp_path / "other"
    words = ["train", str(photos), "--model", "cnn4", "--epochs", "1", "--objective", "CE"]
    assert main([*words, "--out", str(other)]) == 0
    capsys.readouterr()
    assert main(["compare", str(run), str(other)]) == 0
    heading, first, *others = capsys.readouterr().out.splitlines()
    assert "acc %" in heading
    assert "NormFace(s=10) + 0.5*R_sm" in first
    assert any(" CE " in line for line in others)  # a long path takes two lines
    rows = said(capsys, "compare", str(run), str(other), "--json")
    assert [row["run"] for row in rows] == [str(run), str(other)]
    (other / "result.json").unlink()
    assert main(["compare", str(run), str(other)]) == 0
    captured = capsys.readouterr()
    assert f"{other}" in captured.err  # an unfinished run is skipped with a word
    assert "NormFace(s=10) + 0.5*R_sm" in captured.out
    assert str(other) not in captured.out


def test_the_demo_compares_four_objectives_on_digits(tmp_path, capsys):
    rows = said(capsys, "demo", "--epochs", "1", "--out", str(tmp_path / "demo"), "--json")
    assert [row["config"]["objective"] for row in rows] == [
        "CE",
        "NormFace(s=10)",
        "NormFace(s=10) + 0.5*R_sm",
        "LMSoftmax(s=10)",
    ]
    for row in rows:
        assert row["metrics"]["accuracy"] > 0.2  # one epoch; guessing gives 0.1
        assert row["metrics"]["class_margin_maximum_deg"] == pytest.approx(96.379, abs=1e-3)
    assert (tmp_path / "demo" / "4" / "result.json").is_file()
    assert (tmp_path / "demo" / "report.html").read_text().count("<article") == 4


def test_training_skips_unreadable_images_up_to_the_limit(photos, tmp_path, capsys):
    shutil.copytree(photos, tmp_path / "photos")
    for i in range(3):
        (tmp_path / "photos" / "red" / f"broken{i}.jpg").write_bytes(b"not an image")
    words = ["train", str(tmp_path / "photos"), "--model", "cnn4", "--epochs", "1"]
    words += ["--out", str(tmp_path / "run")]
    assert main([*words, "--max-unreadable", "2"]) == 1
    assert "max_unreadable=2" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main(words) == 0

"""`tammes verify` and `tammes embed` on people who are patches of color."""

import json

import numpy as np
import pytest
from PIL import Image

from tammes.lab.cli import main

COLORS = {"Yellow": (200, 200, 30), "Cyan": (30, 200, 200), "Violet": (200, 30, 200)}


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Three people who were not in the training set, ten noisy images each."""
    folder, random = tmp_path_factory.mktemp("others") / "people", np.random.default_rng(5)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for i in range(1, 11):
            pixels = np.array(color) + random.integers(-30, 30, (12, 14, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{name}_{i:04d}.png")
    return folder


def write_pairs(others):
    same = [f"{name}\t{i}\t{i + 1}" for name in COLORS for i in (1, 3, 5, 7)]
    different = [
        f"{a}\t{i}\t{b}\t{i}" for a, b in (("Yellow", "Cyan"), ("Cyan", "Violet")) for i in range(1, 7)
    ]
    path = others.parent / "pairs.txt"
    path.write_text("\n".join([str(len(same)), *same, *different]) + "\n")
    return path


def test_a_list_is_verified_kept_and_used_for_two_images(run, others, capsys):
    pairs = write_pairs(others)
    assert main(["verify", str(run), str(pairs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["numbers"]["auc"] > 0.9
    assert found["numbers"]["accuracy"] > 0.8
    low, high = found["intervals"]["auc"]
    assert low <= found["numbers"]["auc"] <= high + 1e-9
    kept = json.loads((run / "verification" / "pairs.json").read_text())
    assert kept["numbers"] == found["numbers"]
    assert kept["same"] == kept["different"] == 12
    assert kept["versions"]["tammes"]

    image = lambda name, i: str(others / name / f"{name}_{i:04d}.png")  # noqa: E731
    assert main(["verify", str(run), image("Yellow", 9), image("Yellow", 10)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("yes\tscore")
    assert "On pairs this threshold accepts" in said
    assert main(["verify", str(run), image("Yellow", 9), image("Cyan", 9), "--far", "0.1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["same"] is False
    assert answer["score"] < answer["threshold"]
    assert answer["false_accept_rate"] <= 0.1


def test_a_folder_of_people_gives_a_roc_curve(run, others, tmp_path, capsys):
    assert main(["verify", str(run), str(others)]) == 0
    said = capsys.readouterr().out
    assert "people: 27 same and 27 different pairs" in said
    assert "accuracy, ten folds" in said
    assert "95 % bootstrap interval" in said
    assert f"tammes report {run}" in said
    assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "Face verification: people" in page
    assert "ROC curve" in page


def test_overlap_with_training_identities_is_warned_about(run, photos, capsys):
    assert main(["verify", str(run), str(photos)]) == 0
    assert (
        "3 of the 3 people in photos are also in the training set: 'blue', 'green', 'red'"
        in capsys.readouterr().err
    )


def test_embeddings_in_a_file_give_the_same_scores(run, others, tmp_path, capsys):
    target = tmp_path / "embeddings.npz"
    assert main(["embed", str(run), str(others), "--out", str(target)]) == 0
    assert "30 x" in capsys.readouterr().out
    with np.load(target) as stored:
        assert stored["files"][0] == "Cyan/Cyan_0001.png"
        np.testing.assert_allclose(np.linalg.norm(stored["embeddings"], axis=1), 1, atol=1e-5)
    numbers = []
    for source in (run, target):
        assert main(["verify", str(source), str(others), "--json"]) == 0
        numbers.append(json.loads(capsys.readouterr().out)["numbers"])
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-6)


def test_templates_of_ijb_from_stored_embeddings(run, others, tmp_path, capsys):
    target = tmp_path / "embeddings.npz"
    assert main(["embed", str(run), str(others), "--out", str(target)]) == 0
    faces = [
        f"{name}/{name}_{i:04d}.png {10 * place + i // 4} {i}"
        for place, name in enumerate(COLORS)
        for i in range(1, 11)
    ]
    templates = {(place, part): 10 * place + part for place in range(3) for part in range(3)}
    pairs = [
        f"{a} {b} {int(p == q)}"
        for (p, _), a in templates.items()
        for (q, _), b in templates.items()
        if a < b
    ]
    meta = tmp_path / "IJBC"
    meta.mkdir()
    (meta / "ijbc_face_tid_mid.txt").write_text("\n".join(faces))
    (meta / "ijbc_template_pair_label.txt").write_text("\n".join(pairs * 3))
    capsys.readouterr()
    assert main(["verify", str(target), str(meta), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["numbers"]["auc"] > 0.9


def test_a_broken_image_is_named_and_the_others_embedded(run, others, tmp_path, capsys):
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "a.png").write_bytes((others / "Cyan" / "Cyan_0001.png").read_bytes())
    (folder / "b.png").write_bytes(b"no image")
    assert main(["embed", str(run), str(folder), "--out", str(tmp_path / "e.npz")]) == 1
    captured = capsys.readouterr()
    assert "cannot read" in captured.err
    assert "1 x" in captured.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.txt"], "missing.txt does not exist"),
        (["a.jpg", "b.jpg", "c.jpg"], "needs one list of pairs or two images, got 3 arguments"),
        (["a.jpg", "b.jpg"], "cannot be read"),
    ],
)
def test_mistakes_are_one_line(run, others, capsys, words, message):
    assert main(["verify", str(run), str(others)]) == 0
    capsys.readouterr()
    assert main(["verify", str(run), *words]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_two_images_need_a_threshold_first(run, others, tmp_path, capsys):
    import shutil

    fresh = tmp_path / "run"
    shutil.copytree(run, fresh, ignore=shutil.ignore_patterns("verification"))
    image = str(others / "Cyan" / "Cyan_0001.png")
    assert main(["verify", str(fresh), image, image]) == 1
    assert "has not been verified yet" in capsys.readouterr().err

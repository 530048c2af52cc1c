"""Train, evaluate and search from the command line, on people seen by cameras."""

import json
import shutil

import pytest
from PIL import Image

from tammes.lab.cli import main

SMALL = ["--preset", "reid-laptop", "--image-size", "24", "--model", "cnn4", "--batch-size", "12"]
SMALL += ["--images-per-person", "3", "--epochs", "1", "--lr", "0.001", "--embedding", "8"]


@pytest.fixture(scope="module")
def run_on_people(people, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "people"
    assert main(["train", str(people), *SMALL, "--out", str(out)]) == 0
    return out


def said(capsys, *words: str):
    capsys.readouterr()
    assert main([*words]) == 0
    return capsys.readouterr().out


def test_flags_override_the_preset(run_on_people, people):
    config = json.loads((run_on_people / "config.json").read_text())
    assert (config["triplet"], config["neck"], config["sampling"]) == (1.0, True, "identities")
    assert (config["model"], config["epochs"], config["data"]) == ("cnn4", 1, str(people))


def test_evaluation_says_what_the_run_found(run_on_people, capsys):
    stored = json.loads((run_on_people / "result.json").read_text())["metrics"]
    found = json.loads(said(capsys, "evaluate", str(run_on_people), "--json"))
    assert found == stored
    table = said(capsys, "evaluate", str(run_on_people))
    assert "mAP %" in table
    assert f"{100 * stored['mAP']:.2f}" in table
    assert "acc %" not in table
    reranked = json.loads(said(capsys, "evaluate", str(run_on_people), "--rerank", "--json"))
    assert reranked["mAP"] != found["mAP"]


def test_other_people_may_be_asked_for(run_on_people, people, tmp_path, capsys):
    for folder in ("query", "gallery"):
        (tmp_path / folder).mkdir()
        for path in (people / folder).iterdir():
            if path.name.startswith(("0007", "0008")):
                shutil.copy(path, tmp_path / folder)
    shutil.copytree(people / "train", tmp_path / "train")
    found = json.loads(said(capsys, "evaluate", str(run_on_people), str(tmp_path), "--json"))
    assert 0 < found["mAP"] <= 1


def test_search_prints_and_draws_what_it_finds(run_on_people, people, tmp_path, capsys):
    query, gallery = str(people / "query" / "0007_c2s1_0.png"), str(people / "gallery")
    words = ["search", str(run_on_people), query, "--gallery", gallery, "--out", str(tmp_path / "a.png")]
    lines = said(capsys, *words).splitlines()
    assert len(lines) == 11
    place, cosine, verdict, path = lines[0].split("\t")
    assert place == "1"
    assert -1 <= float(cosine) <= 1.001
    assert verdict == ("right" if "0007" in path else "wrong")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > 3 * picture.height
    found = json.loads(said(capsys, *words, "--json", "--top", "3"))
    assert [hit["right"] for hit in found["found"]] == ["0007" in hit["image"] for hit in found["found"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "x", "--preset", "reid"], "Unknown preset 'reid'. Did you mean reid-p"),
        (["train", "x", "--preset", "reid-laptop", "--config", "c.json"], "Pass one of them"),
        (["search", "RUN", "nobody.png", "--gallery", "GALLERY"], "nobody.png"),
        (["search", "RUN", "QUERY", "--gallery", "nowhere"], "Folder nowhere does not exist"),
        (["search", "RUN", "QUERY", "--gallery", "EMPTY"], "No images found in"),
        (["search", "RUN", "QUERY", "--gallery", "GALLERY", "--top", "0"], "top must be at least 1"),
    ],
)
def test_mistakes_are_one_line(words, message, run_on_people, people, tmp_path, capsys):
    names = {
        "RUN": run_on_people,
        "QUERY": people / "query" / "0007_c2s1_0.png",
        "GALLERY": people / "gallery",
        "EMPTY": tmp_path,
    }
    usage = "--config" in words  # flags that contradict each other
    assert main([str(names.get(word, word)) for word in words]) == (2 if usage else 1)
    said = capsys.readouterr().err
    assert said.startswith("tammes: ")
    assert said.count("\n") == 1
    assert message in said


def test_a_page_shows_easy_and_hard_queries(run_on_people, tmp_path, capsys):
    said(capsys, "report", str(run_on_people), "--out", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    easy, hard = page.index("Easy queries"), page.index("Hard queries")
    assert easy < hard
    assert "data:image/jpeg;base64," in page[easy:hard]
    assert "data:image/jpeg;base64," in page[hard:]
    assert "mAP" in page


def test_runs_on_people_compare(run_on_people, capsys):
    assert "rank-1 %" in said(capsys, "compare", str(run_on_people), str(run_on_people))

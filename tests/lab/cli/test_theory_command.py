"""`tammes theory`: what it prints, and what it refuses."""

import json

import pytest

from tammes.lab.cli import main


def test_the_command_prints_where_a_loss_ends(capsys):
    assert main(["theory", "NormFace(s=5)", "--classes", "4", "--dim", "3"]) == 0
    out = capsys.readouterr().out
    assert "109.4712 deg, at most 109.4712" in out
    assert "merged         none" in out


def test_merged_classes_are_named_and_numbers_come_as_json(capsys):
    words = ["theory", "CE", "--classes", "6", "--dim", "6", "--weight-decay", "0.02", "--json"]
    assert main([*words, "--counts", *["1000"] * 3, *["1"] * 3]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["merged"] == [[3, 4, 5]]
    assert len(found["prototypes"]) == len(found["features"]) == 6
    assert found["gradient"] < 1e-3


def test_the_sphere_is_drawn(tmp_path, capsys):
    picture = tmp_path / "sphere.png"
    assert main(["theory", "LMSoftmax(s=10)", "--classes", "5", "--dim", "3", "--plot", str(picture)]) == 0
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (
            ["--classes", "3", "--dim", "2", "--counts", "1", "2"],
            "--counts needs 3 numbers, one per class, got 2",
        ),
        (["--classes", "3", "--dim", "2"], "Pass weight_decay"),
        (["--classes", "3", "--dim", "2", "--plot", "a.png"], "requires D = 3, got 2"),
    ],
)
def test_bad_input_gets_one_line(words, match, capsys):
    assert main(["theory", "CE", *words]) == 1
    assert match in capsys.readouterr().err

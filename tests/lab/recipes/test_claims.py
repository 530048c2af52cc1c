import json

import pytest

from tammes.lab.cli import main
from tammes.lab.recipes import claims, table1
from tammes.lab.recipes.claims import CLASS_MARGIN, MAP, effects, judge
from tammes.lab.training import resolve


def record(**metrics):
    return {"metrics": metrics}


def test_effects_are_differences_between_runs_of_one_seed():
    records = {
        "a": record(class_margin_deg=80.0),
        "b": record(class_margin_deg=70.0),
        "a-seed1": record(class_margin_deg=81.0),
        "b-seed1": record(class_margin_deg=75.0),
        "a-seed2": record(class_margin_deg=99.0),  # without its twin
        "b-seed3": {"diverged": "The loss became nan"},
        "a-seed3": record(class_margin_deg=50.0),
    }
    assert effects([(("a",), ("b",))], records, CLASS_MARGIN) == [10.0, 6.0]
    assert effects([(("a",), ("c",))], records, CLASS_MARGIN) == []


def test_sides_of_several_rows_are_compared_by_their_range_over_the_scales_that_both_have():
    records = {
        "lm1": record(mAP=0.60),
        "lm2": record(mAP=0.65),
        "lm3": record(mAP=0.10),
        "n1": record(mAP=0.40),
        "n2": record(mAP=0.60),
    }
    (found,) = effects([(("lm1", "lm2", "lm3"), ("n1", "n2", "n3"))], records, MAP)
    assert found == pytest.approx(100 * (0.05 - 0.20))
    assert effects([(("lm1", "lm3"), ("n1", "n3"))], records, MAP) == []


@pytest.mark.parametrize(
    ("found", "claimed", "most", "verdict"),
    [
        ([1.0, 1.1, 0.9], 1, False, "supported"),
        ([-1.0, -1.1, -0.9], -1, False, "supported"),
        ([-1.0, -1.1, -0.9], 1, False, "contradicted"),
        ([9.0, 9.0], 1, False, "inconclusive"),  # two pairs are too few, however equal
        ([30.0, 1.0, 1.0], 1, False, "inconclusive"),  # all positive, but the interval holds zero
        ([-0.001] * 3 + [1.0, 1.0], 1, True, "inconclusive"),
        ([], 1, False, "inconclusive"),
    ],
)
def test_the_protocols_rule(found, claimed, most, verdict):
    assert judge(found, claimed, most=most) == verdict


def test_most_cases_means_more_than_half():
    found = [-0.01, -0.01, 1.0, 1.0]
    wide = [-0.01] * 20 + [1.0] * 20
    assert claims.interval(wide)[0] > 0  # type: ignore
    assert judge(wide, 1) == "supported"
    assert judge(wide, 1, most=True) == "inconclusive"
    assert judge(found, 1, most=True) == "inconclusive"


def test_every_pair_names_rows_that_exist():
    for question in claims.questions():
        known = {row.key for row in question.table.rows}
        assert question.pairs
        for sides in question.pairs:
            assert {key for side in sides for key in side} <= known
    assert {question.claim for question in claims.questions()} == {1, 2, 3, 4, 5}


def test_the_two_runs_of_a_pair_differ_in_the_objective_only():
    """In the second of two stages, also in the first stage they start from."""
    for question in claims.questions():
        rows = {row.key: row for row in question.table.rows}
        for changed, plain in question.pairs:
            for a, b in zip(changed, plain, strict=True):
                one, other = (resolve(rows[key].config).settings() for key in (a, b))
                assert {name for name in one if one[name] != other[name]} <= {"objective", "start"}, (a, b)


def test_the_command_prints_and_fills_both_pages(tmp_path, capsys):
    results = tmp_path / "results"
    folder = results / "table1"
    folder.mkdir(parents=True)
    rows = {row.key: row for row in table1.table(dataset="mnist").rows}
    for scale in (10, 20, 64):
        for end, accuracy in (("", 0.99), ("+0.5rsm", 0.98 + scale / 1e5)):
            key = f"mnist-laptop-normface-s{scale}{end}"
            stored = resolve(rows[key].config).settings()
            (folder / f"{key}.json").write_text(
                json.dumps({"config": stored, "seed": 0, "metrics": {"accuracy": accuracy}})
            )
    page, short = tmp_path / "claims.md", tmp_path / "short.md"
    page.write_text("<!-- claims -->\n<!-- end claims -->\n")
    short.write_text("<!-- claims short -->\n<!-- end claims short -->\n")
    words = ["--results", str(results), "--fill", str(page), "--fill-short", str(short)]
    assert main(["reproduce", "claims", *words]) == 0
    line = r"| with 0.5 R\_sm | MNIST, laptop | accuracy | contradicted | -0.97 points | "
    assert line in page.read_text()
    assert line in short.read_text()
    assert "class margin | inconclusive |  |  | 0 |" in page.read_text()
    assert "| class margin |" not in short.read_text()
    assert "contradicted" in capsys.readouterr().out

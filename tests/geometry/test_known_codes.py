"""Codes known by construction: sizes, cosines and the theorems that make some of them the best."""

import math
import time

import pytest
import torch

from tammes._common.threads import one_thread
from tammes.geometry._packing.library import codes_in
from tammes.geometry._packing.symmetry import symmetric_starts
from tammes.geometry.bounds import largest_class_margin
from tammes.geometry.packing import pack
from tammes.geometry.sphere import normalize

LEVENSHTEIN = {(27, 6): 1 / 4, (56, 7): 1 / 3, (240, 8): 1 / 2, (112, 21): 1 / 9, (162, 21): 1 / 7}
LEVENSHTEIN |= {(16, 5): 1 / 5, (100, 22): 1 / 11, (275, 22): 1 / 6, (552, 23): 1 / 5, (891, 22): 1 / 4}
THREE_POINT = {(288, 16): 1 / 4, (56, 20): 1 / 15, (50, 21): 1 / 21, (77, 21): 1 / 12}
BEST_KNOWN = {(40, 5): 1 / 2, (72, 6): 1 / 2, (126, 7): 1 / 2}
"""Largest cosines from the literature: sharp codes, codes proved optimal since, kissing configurations."""


def largest_cosine(points) -> float:
    return float((points @ points.T).fill_diagonal_(-1).max())


@pytest.mark.parametrize(("k", "d"), LEVENSHTEIN)
def test_sharp_codes_meet_levenshteins_bound_at_once(k, d):
    packing = pack(k, d)
    assert math.cos(packing.angle) == pytest.approx(LEVENSHTEIN[k, d], abs=1e-12)
    assert packing.optimal
    assert packing.theorem == "Levenshtein"
    assert packing.points.shape == (k, d)


@pytest.mark.parametrize(("k", "d"), THREE_POINT)
def test_codes_from_triangle_free_graphs_and_kerdock_are_optimal(k, d):
    packing = pack(k, d)
    assert math.cos(packing.angle) == pytest.approx(THREE_POINT[k, d], abs=1e-12)
    assert packing.theorem == "Cohn, de Laat and Leijenhorst 2024"


@pytest.mark.parametrize(
    ("k", "d", "cosine", "author"), [(24, 4, 1 / 2, "de Laat"), (120, 4, (1 + 5**0.5) / 4, "Böröczky")]
)
def test_the_24_cell_and_the_600_cell_are_proved(k, d, cosine, author):
    packing = pack(k, d)
    assert math.cos(packing.angle) == pytest.approx(cosine, abs=1e-12)
    assert author in packing.theorem


@pytest.mark.parametrize(("k", "d"), BEST_KNOWN)
def test_root_systems_are_found_and_not_called_optimal(k, d):
    """That no more points fit at 60 degrees says nothing about the angle of as many."""
    packing = pack(k, d, time_limit=2.0)
    assert math.cos(packing.angle) <= BEST_KNOWN[k, d] + 1e-12
    assert not packing.optimal
    assert packing.theorem is None


@pytest.mark.parametrize("d", [4, 5, 6, 7, 8, 20, 21, 22])
def test_every_known_code_has_the_size_it_is_listed_with(d):
    for code in codes_in(d):
        points = code.build()
        assert points.shape == (code.k, d)
        assert points.norm(dim=1).tolist() == pytest.approx([1.0] * code.k, abs=1e-12)
        assert largest_cosine(points) < 1 - 1e-3, "points that coincide"
        assert math.acos(largest_cosine(points)) <= largest_class_margin(code.k, d).angle + 1e-9


def test_deleting_points_of_a_good_code_is_tried(recwarn):
    """No random start comes near 60 degrees here."""
    assert math.degrees(pack(239, 8, time_limit=1.0).angle) >= 60 - 1e-9
    assert math.degrees(pack(38, 5, time_limit=1.0).angle) >= 60 - 1e-9


@pytest.mark.parametrize(("k", "d"), [(12, 4), (31, 5), (40, 6), (25, 7)])
def test_symmetric_starts_have_points_in_orbits(k, d):
    """With a symmetry distances occur several times; in random points all are different."""
    starts = symmetric_starts(20, k, d, torch.Generator().manual_seed(0))
    assert starts.shape == (20, k, d)
    pairs = torch.ones(k, k, dtype=torch.bool).triu(1)
    for start in starts:
        different = (start @ start.T)[pairs].mul(1e6).round().unique()
        assert len(different) < pairs.sum() * 0.75


def test_a_start_is_improved_and_never_made_worse(tmp_path):
    points = pack(13, 3).points
    noise = torch.randn(13, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rough = points + 0.02 * noise
    better = pack(13, 3, start=rough.numpy())
    assert math.degrees(math.acos(largest_cosine(normalize(rough)))) < 56
    assert math.degrees(better.angle) == pytest.approx(57.1367031, abs=1e-6)
    best = pack(72, 6, start=pack(72, 6, time_limit=1.0).points, time_limit=1.0)
    assert math.degrees(best.angle) >= 60 - 1e-9
    numbers = rough.flatten().tolist()
    for text in ("\n".join(map(str, numbers)), ", ".join(map(str, numbers))):
        (tmp_path / "pack.3.13.txt").write_text(text)
        again = pack(13, 3, start=tmp_path / "pack.3.13.txt")
        assert again.angle == pytest.approx(better.angle, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("1 0 0 1 x 0", "must contain only numbers"),
        ("1 2 3", "12 numbers, got 3"),
        ("0 " * 12, "finite, nonzero points"),
    ],
)
def test_files_that_hold_no_start_are_refused(tmp_path, text, match):
    file = tmp_path / "points.txt"
    file.write_text(text)
    with pytest.raises(ValueError, match=match):
        pack(4, 3, start=file)
    with pytest.raises(ValueError, match=r"shape \(4, 3\), one point per row, got \(3, 4\)"):
        pack(4, 3, start=torch.ones(3, 4))


@pytest.mark.parametrize(("k", "d"), [(60, 6), (110, 8), (400, 8)])
def test_a_time_limit_is_kept_within_ten_percent(k, d, recwarn, monkeypatch):
    """In CPU seconds; a busy neighbor slows these too, by the cache, so one of three attempts is enough."""
    monkeypatch.setattr(time, "perf_counter", time.process_time)

    def seconds() -> float:
        began = time.process_time()
        assert pack(k, d, time_limit=3.0).angle > 0
        return time.process_time() - began

    with one_thread():
        assert any(seconds() < 3.3 for _ in range(3))


def test_coordinates_are_written_as_text_and_read_back(tmp_path, capsys):
    from tammes.lab.cli import main

    path = tmp_path / "points.txt"
    assert main(["pack", "8", "3", "--save", str(path)]) == 0
    rows = [[float(x) for x in line.split()] for line in path.read_text().splitlines()]
    assert math.degrees(math.acos(largest_cosine(torch.tensor(rows, dtype=torch.float64)))) == pytest.approx(
        74.8584922, abs=1e-6
    )
    assert main(["pack", "8", "3", "--start", str(path)]) == 0
    assert "Schütte" in capsys.readouterr().out
    assert main(["pack", "8", "3", "--save", "points.doc"]) == 1
    assert ".npy or .txt" in capsys.readouterr().err

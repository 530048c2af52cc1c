"""Packings are certified here without the solver: angles in float64, contacts, bounds from their formulas."""

import json
import math
import os
import signal
import threading

import numpy as np
import pytest
import torch

from tammes.geometry._descent import Cosines
from tammes.geometry._packing import polish as polishing
from tammes.geometry._packing.multistart import Clock, PackingSearch, random_starts
from tammes.geometry._packing.polish import CosineTerms
from tammes.geometry._packing.starts import further_starts
from tammes.geometry.bounds import fejes_toth, largest_class_margin, levenshtein
from tammes.geometry.packing import pack, softmax_code
from tammes.geometry.simplices import orthoplex, polygon, simplex
from tammes.geometry.sphere import normalize

# Best known angles in degrees (Sloane's tables and the proofs they cite); proven up to 14 and for 24.
BEST_KNOWN = {
    7: 77.8695422,
    8: 74.8584922,
    9: 70.5287794,
    10: 66.1468220,
    11: 63.4349488,
    12: 63.4349488,
    13: 57.1367031,
    14: 55.6705700,
    21: 45.6132231,
    24: 43.6907671,
}


def smallest_angle_deg(points):
    """By numpy, from chords: nothing of the package."""
    points = points.numpy()
    chord = np.linalg.norm(points[:, None] - points[None], axis=2)
    chord[np.diag_indices(len(points))] = 2.0
    return math.degrees(2 * math.asin(chord.min() / 2))


@pytest.mark.parametrize("k", BEST_KNOWN)
def test_angles_in_three_dimensions_are_the_best_known(k):
    packing = pack(k, 3)
    assert smallest_angle_deg(packing.points) == pytest.approx(math.degrees(packing.angle), abs=1e-9)
    assert math.degrees(packing.angle) == pytest.approx(BEST_KNOWN[k], abs=1e-6)
    assert packing.angle <= packing.bound + 1e-9
    assert packing.points.dtype == torch.float64
    assert packing.points.norm(dim=1).tolist() == pytest.approx([1.0] * k, abs=1e-12)


@pytest.mark.parametrize(
    ("k", "d", "degrees"), [(2, 5, 180.0), (4, 3, 109.4712206), (5, 3, 90.0), (8, 4, 90.0), (7, 2, 360 / 7)]
)
def test_closed_forms_are_returned_at_once_and_certified(k, d, degrees):
    packing = pack(k, d)
    assert math.degrees(packing.angle) == pytest.approx(degrees, abs=1e-6)
    assert packing.optimal
    assert packing.seconds < 1


def test_the_24_cell_is_found_in_four_dimensions():
    packing = pack(24, 4)
    assert math.degrees(packing.angle) == pytest.approx(60.0, abs=1e-6)
    assert len(packing.contacts) == 24 * 8 // 2  # every vertex of the 24-cell has eight neighbors


def test_contacts_and_rattlers_partition_the_points():
    packing = pack(19, 3)
    points, touching = packing.points, set(packing.contacts.flatten().tolist())
    cosines = (points @ points.T).fill_diagonal_(-1.0)
    for i, j in packing.contacts.tolist():
        assert i < j
        assert math.acos(cosines[i, j]) == pytest.approx(packing.angle, abs=2e-7)
    assert touching.isdisjoint(packing.rattlers.tolist())
    assert len(touching) + len(packing.rattlers) == 19
    assert packing.gamma == pytest.approx(1 - math.cos(packing.angle), abs=1e-12)


@pytest.mark.parametrize(("k", "d"), [(4, 2), (5, 2), (8, 2), (7, 3), (9, 4), (6, 5)])
def test_theorem_2_2_the_largest_gamma_min_is_one_minus_the_cosine_of_the_tammes_angle(k, d):
    assert softmax_code(k, d).gamma == pytest.approx(1 - math.cos(pack(k, d).angle), abs=1e-7)


@pytest.mark.parametrize(("k", "d"), [(3, 2), (4, 3), (7, 3), (13, 3), (24, 4), (40, 5), (300, 7)])
def test_random_points_never_beat_the_bound(k, d):
    bound = largest_class_margin(k, d)
    points = normalize(
        torch.randn(200, k, d, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
    )
    cosines = points @ points.mT - 3 * torch.eye(k, dtype=torch.float64)
    assert math.acos(cosines.amax((1, 2)).min()) < bound.angle


def test_bounds_by_their_formulas():
    assert math.degrees(largest_class_margin(10, 64).angle) == pytest.approx(math.degrees(math.acos(-1 / 9)))
    assert largest_class_margin(7, 4) == pytest.approx(largest_class_margin(8, 4))
    assert math.degrees(largest_class_margin(8, 4).angle) == pytest.approx(90.0)
    assert math.degrees(fejes_toth(12)) == pytest.approx(math.degrees(math.acos(1 / math.sqrt(5))))
    assert math.cos(levenshtein(240, 8)) == pytest.approx(1 / 2, abs=1e-9)  # the E8 roots meet it


@pytest.mark.parametrize(("k", "d"), [(2, 2), (3, 2), (10, 64), (33, 32)])
def test_the_simplex_has_equal_angles_and_a_zero_centroid(k, d):
    points = simplex(k, d)
    expected = torch.full((k, k), -1 / (k - 1), dtype=torch.float64).fill_diagonal_(1.0)
    torch.testing.assert_close(points @ points.T, expected, atol=1e-12, rtol=0)
    assert points.mean(0).norm() < 1e-12


def test_orthoplex_and_polygon():
    assert (orthoplex(7, 4) @ orthoplex(7, 4).T).fill_diagonal_(-1).max() <= 1e-15
    assert smallest_angle_deg(polygon(9)) == pytest.approx(40.0)


def test_the_same_seed_gives_the_same_points_and_another_seed_others():
    first, again, other = pack(9, 4, seed=3), pack(9, 4, seed=3), pack(9, 4, seed=4)
    assert torch.equal(first.points, again.points)
    assert not torch.equal(first.points, other.points)


def test_riesz_energy_reaches_the_same_angle():
    assert math.degrees(pack(7, 3, method="riesz").angle) == pytest.approx(BEST_KNOWN[7], abs=1e-2)


def test_a_time_limit_too_short_gives_the_best_so_far_and_a_warning():
    with pytest.warns(UserWarning, match="time_limit"):
        packing = pack(300, 20, time_limit=1e-3)
    assert packing.points.shape == (300, 20)
    assert not packing.optimal
    assert packing.angle > 0


def test_ctrl_c_returns_the_best_so_far():
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    packing = pack(600, 40)
    timer.join()
    assert packing.points.shape == (600, 40)
    assert packing.angle > 0


def test_a_large_packing_beats_random_points():
    packing = pack(300, 16, time_limit=4.0)
    random = normalize(torch.randn(300, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    assert smallest_angle_deg(packing.points) > smallest_angle_deg(random) + 20
    assert torch.get_num_threads() == THREADS


THREADS = torch.get_num_threads()


@pytest.mark.parametrize(
    ("k", "d", "error", "match"),
    [
        (1, 3, ValueError, "k must be at least 2, got 1"),
        (4, 1, ValueError, "d must be at least 2, got 1"),
        (4.5, 3, TypeError, ""),
    ],
)
def test_bad_sizes_are_refused(k, d, error, match):
    with pytest.raises(error, match=match):
        pack(k, d)


def test_the_command_prints_saves_and_draws(tmp_path, capsys):
    from tammes.lab.cli import main

    assert main(["pack", "7", "3", "--plot", str(tmp_path / "p.png"), "--save", str(tmp_path / "p.npy")]) == 0
    assert "77.8695422 deg" in capsys.readouterr().out
    assert (tmp_path / "p.png").stat().st_size > 10_000
    assert smallest_angle_deg(torch.from_numpy(np.load(tmp_path / "p.npy"))) == pytest.approx(
        77.8695422, abs=1e-6
    )
    assert main(["pack", "4", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["optimal"]
    assert len(found["points"]) == 4
    assert main(["pack", "4", "5", "--plot", "p.png"]) == 1
    assert "requires D = 3, got 5" in capsys.readouterr().err


def test_restarts_also_set_the_size_of_later_rounds():
    """Before, a search with few starts still ran rounds of default size."""
    best = random_starts(1, 31, 5, 0)[0]
    sizes = [sum(map(len, further_starts(restarts, 31, 5, 0)(best))) for restarts in (4, 40, None)]
    assert sizes[0] == 1 + 4
    assert sizes[0] < sizes[1] < sizes[2]


def test_a_search_goes_on_until_every_point_may_have_been_moved():
    """Three rounds without improvement were the end before: pack(86, 6) stopped at 0.5503, not at 0.5489."""
    rounds = []

    def same_again(best):
        rounds.append(best)
        return best[None], best[None]

    search = PackingSearch(Cosines(), CosineTerms(40), 1.0, -1.0, Clock(None), None, same_again)
    search.improve(polygon(40)[None])
    assert len(rounds) == 40 / 8


def test_large_programs_give_what_small_ones_do(monkeypatch):
    """Interior points, the simplex method, and the second where the first cycles: the same packing."""
    start = pack(12, 4, restarts=4, polish=False).points.numpy()
    found = []
    for interior, cycling in ((0, 10_000), (10_000, 10_000), (0, 1)):
        monkeypatch.setattr(polishing, "_INTERIOR", interior)
        monkeypatch.setattr(polishing, "_CYCLING", cycling)
        found.append(CosineTerms(12).values(polishing.polish(start, CosineTerms(12))).max())
    assert found == pytest.approx([found[1]] * 3, abs=1e-12)

"""Packings of more points than a matrix of all cosines is made for."""

import math

import pytest
import torch

from tammes.geometry._packing.sweeps import sweep_apart
from tammes.geometry.packing import pack
from tammes.geometry.sphere import normalize

K, D = 4_217, 17


@pytest.fixture
def start():
    return normalize(torch.randn(K, D, generator=torch.Generator().manual_seed(0)))


def smallest_angle(points) -> float:
    """By all pairs, in float64."""
    cosines = points.double() @ points.double().T
    return math.acos(cosines.fill_diagonal_(-1).max().item())


def test_a_few_blocks_already_widen_the_smallest_angle(start):
    """The closest points come first, so a search that is cut short has gained."""
    before, heard = smallest_angle(start), []
    done = sweep_apart(start, stop=lambda: len(heard) > 5, progress=lambda angle, _: heard.append(angle))
    assert not done
    assert heard == sorted(heard)
    assert heard[0] == pytest.approx(before, abs=1e-3)
    assert smallest_angle(start) > before + math.radians(3)


def test_the_angle_of_a_swept_packing_is_that_of_its_closest_pair(recwarn):
    packing = pack(K, D, time_limit=3.0)
    assert packing.points.dtype == torch.float64
    assert packing.points.norm(dim=1).tolist() == pytest.approx([1.0] * K, abs=1e-12)
    assert packing.angle == pytest.approx(smallest_angle(packing.points), abs=1e-9)
    assert packing.angle < packing.bound

"""Equation 3.2 and what it leaves out: SphereFace past 2 pi/(m1+1), ArcFace past pi - m."""

import math

import pytest
import torch
from torch import tensor

from tammes.losses import ArcFace, CombinedMargin, Objective
from tammes.losses.arcface import additive_angle
from tammes.losses.sphereface import monotone_cosine

THETA = torch.linspace(0, math.pi, 1001, dtype=torch.float64)


@pytest.mark.parametrize("m", [0.0, 0.1, 0.5, 1.2, math.pi / 2])
def test_equation_3_2_the_additive_angle_stays_below_its_line(m):
    line = math.cos(m) * THETA.cos()
    for beyond_pi in ("plain", "clip", "linear"):
        checked = THETA.le(math.pi - m) if beyond_pi == "clip" else THETA.ge(0)
        assert (additive_angle(THETA.cos(), m, beyond_pi=beyond_pi) <= line + 1e-12)[checked].all()


def test_equation_3_2_is_an_equality_at_theta_0_and_elsewhere_too():
    """With m1 = 1, m2 = 0 it is one at every angle, not "if and only if theta = 0" (erratum 16)."""
    torch.testing.assert_close(additive_angle(THETA.cos(), 0.0), THETA.cos())
    inside = THETA.gt(0.01) & THETA.lt(math.pi - 0.01)
    gap = math.cos(0.3) * THETA.cos() - additive_angle(THETA.cos(), 0.3, beyond_pi="plain")
    assert gap[0].abs() < 1e-12
    assert (gap[inside] > 1e-4).all()


@pytest.mark.parametrize("m", [1.5, 2.0, 4.0])
def test_a_multiplied_angle_has_the_smaller_cosine_only_up_to_2_pi_over_m_plus_1(m):
    """For m = 4 that is 72 degrees, short of the paper's 90 (erratum 9)."""
    last = 2 * math.pi / (m + 1)
    holds = (m * THETA).cos() <= THETA.cos() + 1e-12
    assert holds[THETA.le(last)].all()
    assert not holds[THETA.gt(last + 1e-3) & THETA.lt(last + 0.1)].any()
    assert (monotone_cosine(m * THETA) <= THETA.cos() + 1e-12).all()
    assert (monotone_cosine(m * THETA).diff() < 0).all()


def descend_angle(loss: Objective, start: float) -> float:
    """Where the angle between a feature and its prototype ends; the rival is orthogonal to their plane."""
    w = torch.eye(2, 3, dtype=torch.float64)
    theta = tensor(start, dtype=torch.float64, requires_grad=True)
    for _ in range(300):
        z = torch.stack([theta.cos(), torch.zeros_like(theta), theta.sin()])[None]
        (gradient,) = torch.autograd.grad(loss(z, w, tensor([0])), theta)
        theta = (theta - 0.02 * gradient).clamp(0, math.pi).detach().requires_grad_()
    return theta.item()


def test_plain_arcface_pulls_a_feature_past_pi_minus_m_to_the_antipode():
    """The linear way brings it home, CombinedMargin's (level at pi) to pi - m (erratum 10)."""
    start = math.pi - 0.4
    assert descend_angle(ArcFace(scale=4.0, margin=0.5, beyond_pi="plain"), start) > math.pi - 0.1
    assert descend_angle(ArcFace(scale=4.0, margin=0.5, beyond_pi="linear"), start) < 0.1
    assert descend_angle(CombinedMargin(scale=4.0, m2=0.5), start) < math.pi - 0.499


def test_plain_arcface_turns_at_pi_minus_m():
    m = 0.5
    moved = additive_angle(THETA.cos(), m, beyond_pi="plain")
    assert THETA[moved.argmin()].item() == pytest.approx(math.pi - m, abs=0.004)
    assert (additive_angle(THETA.cos(), m).diff() < 0).all()
    assert (additive_angle(THETA.cos(), m, beyond_pi="clip").diff() <= 0).all()

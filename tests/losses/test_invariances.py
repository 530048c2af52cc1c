"""Losses are invariant to rotations, class order and sample order, and decrease with the target cosine."""

import dataclasses
import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tammes.losses import ArcFace, GMSoftmax, Scores
from tammes.losses._engine.batch_loss import class_value_tensors

SEEDS = st.integers(0, 2**32 - 1)
few = settings(max_examples=3, deadline=None)


def value(term, *batch, **options):
    torch.default_generator.manual_seed(0)  # of random margins
    return term(*batch, **options)


def permutation(n: int, seed: int) -> torch.Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


@few
@given(seed=SEEDS)
def test_a_rotation_changes_nothing(term, new_batch, seed):
    z, w, y = new_batch(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    rotation, _ = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64))
    torch.testing.assert_close(value(term, z @ rotation, w @ rotation, y), value(term, z, w, y))


@few
@given(seed=SEEDS)
def test_the_order_of_samples_changes_nothing(term, new_batch, seed):
    z, w, y = new_batch(seed=seed)
    order = permutation(len(y), seed)
    rows, moved = (
        value(steady(term), *some, reduction=own_reduction(term))
        for some in ((z, w, y), (z[order], w, y[order]))
    )
    torch.testing.assert_close(moved, rows if rows.ndim == 0 else rows[order])


def steady(term):
    """Without random margins, which go by the place of a sample."""
    return dataclasses.replace(term, std=0) if term.need.noise else term


def own_reduction(term) -> str:
    """One value a sample where the term has such."""
    return "mean" if getattr(term, "reduction", "none") == "lse" else "none"


@few
@given(seed=SEEDS)
def test_the_numbers_of_classes_change_nothing(term, new_batch, seed):
    z, w, y = new_batch(seed=seed)
    new_number = permutation(7, seed)
    of_old = torch.argsort(new_number).tolist()
    renamed = dataclasses.replace(
        term,
        **{
            field.name: tuple(getattr(term, field.name)[j] for j in of_old)
            for field in dataclasses.fields(term)
            if isinstance(getattr(term, field.name), tuple)
        },
    )
    torch.testing.assert_close(value(renamed, z, w[of_old], new_number[y]), value(term, z, w, y))


@few
@given(seed=SEEDS, others=st.lists(st.floats(-1, 1), min_size=6, max_size=6))
def test_the_loss_falls_as_the_target_cosine_rises(falling_term, seed, others):
    label = seed % 7
    targets = torch.linspace(-1, 1, 41, dtype=torch.float64)
    cosines = torch.tensor(others, dtype=torch.float64).expand(41, 6)
    cosines = torch.cat([cosines[:, :label], targets[:, None], cosines[:, label:]], 1)
    labels = torch.full((41,), label)
    scores = Scores.of(cosines, labels, scale=falling_term.need.scale or 1.0)
    tables = class_value_tensors(falling_term, 7, None, cosines)
    loss = falling_term.per_sample(scores, **{name: table[labels] for (_, name), table in tables.items()})
    steps = loss.diff()
    assert (steps <= 1e-12).all()
    assert loss[-1] < loss[0]


def test_the_exceptions_do_rise_somewhere():
    """Plain ArcFace past pi - m, the easy margin at t = 0, GM-Softmax with alpha2 > alpha1."""
    targets = torch.linspace(-1, 1, 401, dtype=torch.float64)
    cosines = torch.stack([targets, torch.full_like(targets, -0.9)], 1)
    scores = Scores.of(cosines, torch.zeros(401, dtype=torch.long), scale=8.0)
    rising = {
        ArcFace(scale=8, margin=0.5, beyond_pi="plain"): targets < -math.cos(0.5),
        ArcFace(scale=8, margin=0.5, easy_margin=True): targets.abs() < 0.01,
        GMSoftmax(scale=8, alpha1=0.6, alpha2=1.4): targets > 0.5,
    }
    for term, where in rising.items():
        assert (term.per_sample(scores)[where].diff() > 0).any(), term

"""What the head refuses, in words; and that a call which fails changes nothing."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Wrong types are what is tested.

import copy
import math

import pytest
import torch
from torch import nn

from tammes import MixedLabels, PrototypeHead, parse
from tammes.losses import LDAM, CosFace, LMSoftmax, NormFace, SampleMargin

pytestmark = pytest.mark.usefixtures("unchecked")

CONSTRUCTORS = {
    "one class": (lambda: PrototypeHead(5, 1, LOSS), ValueError, "num_classes must be at least 2, got 1"),
    "no features": (lambda: PrototypeHead(0, 7, LOSS), ValueError, "in_features must be at least 1, got 0"),
    "float sizes": (
        lambda: PrototypeHead(5.0, 7, LOSS),
        TypeError,
        "in_features must be an integer, got 5.0",
    ),
    "text": (lambda: PrototypeHead(5, 7, "CEE"), ValueError, "Unknown term 'CEE'.*Did you mean CE"),
    "no term": (lambda: PrototypeHead(5, 7, sum([])), TypeError, "must be an Objective or its text, got 0"),
    "init": (
        lambda: PrototypeHead(5, 7, LOSS, init="best"),
        ValueError,
        "init must be one of 'random', 'packed'",
    ),
    "block": (
        lambda: PrototypeHead(5, 7, LOSS, block_size=0),
        ValueError,
        "block_size must be at least 1, got 0",
    ),
    "block word": (
        lambda: PrototypeHead(5, 7, LOSS, block_size="big"),
        ValueError,
        "block_size must be one of",
    ),
    "counts length": (
        lambda: PrototypeHead(5, 7, LOSS, class_counts=[1, 2]),
        ValueError,
        r"class_counts must have 7 entries, one per class, got \(2,\)",
    ),
    "counts zero": (
        lambda: PrototypeHead(5, 7, LOSS, class_counts=[1, 2, 3, 0, 5, 6, 7]),
        ValueError,
        "class_counts must be positive and finite, got 0 at 3",
    ),
    "weight negative": (
        lambda: PrototypeHead(5, 7, LOSS, class_weight=[1, 2, 3, -1, 5, 6, 7]),
        ValueError,
        "class_weight must be at least 0 and finite, got -1 at 3",
    ),
    "LDAM without counts": (
        lambda: PrototypeHead(5, 7, LDAM(scale=8)),
        ValueError,
        "LDAM needs class counts",
    ),
    "margins": (
        lambda: PrototypeHead(5, 7, CosFace(scale=8, margin=[0.1, 0.2])),
        ValueError,
        "CosFace has margin for 2 classes, but there are 7",
    ),
}
LOSS = NormFace(scale=8)


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_constructors(name):
    make, error, wording = CONSTRUCTORS[name]
    with pytest.raises(error, match=wording):
        make()


def nan_at(embeddings):
    return embeddings.detach().index_put((torch.tensor(3), torch.tensor(1)), torch.tensor(math.nan))


CALLS = {
    "label range": (lambda h, z, y: h(z, y + 1), ValueError, r"labels must lie in \[0, 7\)"),
    "label type": (lambda h, z, y: h(z, y.float()), TypeError, "labels must be integers"),
    "label count": (lambda h, z, y: h(z, y[1:]), ValueError, r"labels must have shape \(11,\)"),
    "columns": (lambda h, z, y: h(z[:, 1:], y), ValueError, "embeddings must have 5 columns.*in_features"),
    "columns of logits": (lambda h, z, y: h(z[:, 1:]), ValueError, "embeddings must have 5 columns"),
    "columns of cosines": (lambda h, z, y: h.cosines(z[:, 1:]), ValueError, "embeddings must have 5 columns"),
    "columns to predict": (lambda h, z, y: h.predict(z[:, 1:]), ValueError, "embeddings must have 5 columns"),
    "empty batch": (lambda h, z, y: h(z[:0], y[:0]), ValueError, "at least one row.*Skip empty batches"),
    "integers": (lambda h, z, y: h(z.long(), y), TypeError, "embeddings must be floating point"),
    "soft sums": (
        lambda h, z, y: h(z, torch.ones(11, 7)),
        ValueError,
        "sum to 1 in each row, got 7 in row 0",
    ),
    "lam": (lambda h, z, y: h(z, MixedLabels(y, y, -1.0)), ValueError, r"lam must lie in \[0, 1\], got -1"),
    "sample_weight": (
        lambda h, z, y: h(z, y, sample_weight=torch.ones(3)),
        ValueError,
        r"sample_weight must have shape \(11,\)",
    ),
    "reduction": (
        lambda h, z, y: h(z, y, reduction="sum"),
        ValueError,
        "reduction must be one of 'mean', 'none'",
    ),
    "NaN": (
        lambda h, z, y: h(nan_at(z), y, check=True),
        ValueError,
        r"embeddings must be finite, got nan at \[3, 1\]",
    ),
    "top": (
        lambda h, z, y: h.predict(z, top=8),
        ValueError,
        "top must be at most .* 7, got 8",
    ),
    "no top": (lambda h, z, y: h.predict(z, top=0), ValueError, "top must be at least 1, got 0"),
    "objective": (
        lambda h, z, y: setattr(h, "objective", 3.5),
        TypeError,
        "must be an Objective or its text, got 3.5.*Write it like",
    ),
    "margins": (
        lambda h, z, y: setattr(h, "objective", CosFace(scale=8, margin=[0.1, 0.2])),
        ValueError,
        "CosFace has margin for 2 classes, but there are 7",
    ),
    "LDAM": (
        lambda h, z, y: setattr(h, "objective", LDAM(scale=8)),
        ValueError,
        "LDAM needs class counts",
    ),
}


def state(head):
    """All that a call could change; the workspace is room, not state."""
    return {name: v for name, v in head.__dict__.items() if name != "_workspace"}, torch.get_rng_state()


@pytest.mark.parametrize("name", CALLS)
def test_a_failed_call_changes_nothing(name, embeddings, labels):
    call, error, wording = CALLS[name]
    head = PrototypeHead(
        5, 7, CosFace(scale=8, margin=[0.05 * j for j in range(7)]), class_weight=torch.rand(7)
    )
    head(embeddings, labels)
    before = copy.deepcopy(state(head))
    with pytest.raises(error, match=wording):
        call(head, embeddings, labels)
    assert same(before, state(head))
    assert head.weight.grad is None
    assert embeddings.grad is None


def same(a, b) -> bool:
    """Equal throughout, tensors by value."""
    if isinstance(a, torch.Tensor):
        return a.equal(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_lse_under_reduction_none_changes_nothing(embeddings, labels):
    head = PrototypeHead(5, 7, LMSoftmax(scale=8, reduction="lse"))
    head(embeddings, labels)
    before = head.terms
    with pytest.raises(ValueError, match='cannot be added under reduction="none"'):
        head(embeddings, labels, reduction="none")
    assert head.terms is before


def test_all_rows_ignored(head, embeddings, labels):
    head.objective = parse("CosFace(s=8, m=0.2) + 0.5*R_sm")
    loss = head(embeddings, torch.full_like(labels, -100))
    loss.backward()
    assert loss == 0
    assert head.weight.grad.eq(0).all()
    assert embeddings.grad.eq(0).all()
    assert all(value == 0 for value in head.terms.values())


WAYS_OUT = {
    "sequences": (lambda z, y: (z[None], y[None]), r"shape \(1, 11, 5\).*embeddings\.flatten\(0, 1\)"),
    "one vector": (lambda z, y: (z[0], y[:1]), r"shape \(5,\).*embeddings\.unsqueeze\(0\)"),
    "a column of labels": (lambda z, y: (z, y[:, None]), r"shape \(11, 1\).*labels\.squeeze\(1\)"),
    "integer one-hot": (
        lambda z, y: (z, nn.functional.one_hot(y, 7)),
        r"shape \(11, 7\).*labels\.argmax\(1\), or labels\.float\(\)",
    ),
    "a table of labels": (lambda z, y: (z, y.expand(2, -1)), r"shape \(2, 11\).*labels\.flatten\(\)"),
    "a label alone": (lambda z, y: (z[:1], y[0]), r"shape \(\).*labels\.unsqueeze\(0\)"),
}


@pytest.mark.parametrize("name", WAYS_OUT)
def test_shapes_that_people_bring_get_a_way_out(name, head, embeddings, labels):
    change, match = WAYS_OUT[name]
    with pytest.raises(ValueError, match=match):
        head(*change(embeddings, labels))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_check_finds_what_is_not_finite_and_says_where(value, head, embeddings, labels):
    broken = embeddings.detach().clone()
    broken[4, 2] = value
    with pytest.raises(ValueError, match=r"embeddings must be finite, got .* at \[4, 2\]"):
        head(broken, labels, check=True)
    with torch.no_grad():
        head.weight[3, 1] = value
    with pytest.raises(ValueError, match=r"weight must be finite, got .* at \[3, 1\]"):
        head(embeddings, labels, check=True)
    assert not head(embeddings, labels).isfinite()


@pytest.mark.filterwarnings("ignore:.*classes:UserWarning")
def test_check_names_the_term_that_overflows(labels):
    head = PrototypeHead(5, 7, NormFace(scale=3e38) + SampleMargin())
    with pytest.raises(ValueError, match=r"loss must be finite, got inf in NormFace\(s=3e\+38\), although"):
        head(-head.weight.detach()[labels], labels, check=True)

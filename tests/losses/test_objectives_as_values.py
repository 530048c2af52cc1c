"""Objectives add, scale, compare and print like the formulas they stand for."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Wrong types are what is tested.

import pickle

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tammes.losses import (
    CATALOGUE,
    LDAM,
    AMSoftmax,
    ArcFace,
    CombinedMargin,
    CosFace,
    CrossEntropy,
    Focal,
    GMSoftmax,
    HypersphericalEnergy,
    LabelAware,
    LMSoftmax,
    LSoftmax,
    NormFace,
    SampleMargin,
    SphereFace,
    ZeroCentroid,
    parse,
)
from tammes.losses.objective import first_loss, logit_space

# The type checks of the tests look at a random item of a list.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

scales = st.floats(1e-3, 1e4)
smoothings = st.floats(0, 1)


def numbers(low: float, high: float):
    """One number, or one for each of a few classes."""
    some = st.floats(low, high)
    return some | st.lists(some, min_size=2, max_size=4).map(tuple)


TERMS = {
    CrossEntropy: st.builds(CrossEntropy, normalize=st.just(True), scale=scales, label_smoothing=smoothings),
    Focal: st.builds(Focal, gamma=st.floats(0, 100), label_smoothing=smoothings),
    LSoftmax: st.builds(LSoftmax, margin=numbers(1, 100)),
    NormFace: st.builds(NormFace, scale=scales, label_smoothing=smoothings),
    CosFace: st.builds(CosFace, scale=scales, margin=numbers(0, 2), label_smoothing=smoothings),
    ArcFace: st.builds(
        ArcFace,
        scale=scales,
        margin=numbers(0, 1.57),
        beyond_pi=st.sampled_from(["linear", "clip", "plain"]),
        gradient=st.sampled_from(["exact", "straight_through"]),
        easy_margin=st.booleans(),
    ),
    SphereFace: st.builds(SphereFace, scale=scales, margin=numbers(1, 100), normalize_features=st.booleans()),
    CombinedMargin: st.builds(
        CombinedMargin, scale=scales, m1=numbers(1, 9), m2=numbers(0, 1.57), m3=numbers(0, 2)
    ),
    GMSoftmax: st.builds(
        GMSoftmax, scale=scales, alpha1=numbers(0, 9), alpha2=numbers(-9, 9), beta2=numbers(-1e6, 1e6)
    ),
    LMSoftmax: st.builds(LMSoftmax, scale=scales, reduction=st.sampled_from(["mean", "lse", "none"])),
    LDAM: st.builds(
        LDAM,
        scale=scales,
        counts=st.none() | st.lists(st.floats(1, 1e9), min_size=2, max_size=4).map(tuple),
        C=st.none() | st.floats(0.1, 9),
    ),
    LabelAware: st.builds(
        LabelAware,
        head=st.floats(0, 1),
        tail=st.floats(0, 1),
        counts=st.none() | st.lists(st.floats(1, 1e9), min_size=2, max_size=4).map(tuple),
    ),
    SampleMargin: st.builds(SampleMargin, form=st.sampled_from(["max", "mean"]), normalize=st.booleans()),
    ZeroCentroid: st.builds(ZeroCentroid, normalize=st.booleans()),
    HypersphericalEnergy: st.builds(HypersphericalEnergy, power=st.floats(0, 100)),
}
terms = st.one_of(*TERMS.values())
coefficients = st.floats(-1e6, 1e6).filter(lambda c: abs(c) > 1e-6)
objectives = st.lists(
    st.tuples(coefficients, terms), min_size=1, max_size=4, unique_by=lambda part: part[1]
).map(lambda parts: sum(coefficient * term for coefficient, term in parts))
several = settings(max_examples=60, deadline=None)


def test_every_catalogue_entry_is_generated():
    assert set(TERMS) == set(CATALOGUE)


@several
@given(objectives)
def test_parse_reads_what_str_prints(objective):
    assert parse(str(objective)) == objective


@several
@given(objectives, objectives)
def test_addition_commutes_and_equal_values_hash_alike(a, b):
    assume(a != -b)
    assert a + b == b + a
    assert hash(a + b) == hash(b + a)


@several
@given(objectives)
def test_a_plus_a_is_two_a_and_what_undoes_it(a):
    assert a + a == 2 * a == a * 2
    assert hash(a + a) == hash(2 * a)
    assert (a + a) / 2 == a
    assert -1 * -a == a
    assert 2 * a - a == a
    assert sum([a]) == a
    assert a != 2 * a


@given(terms, terms, terms)
@several
def test_sum_and_distribution(a, b, c):
    assert sum([a, b, c]) == a + (b + c) == c + a + b
    assert 4 * (a + b) - 4 * c + 4 * c == 4 * a + 4 * b


@given(terms, terms)
@several
def test_different_terms_make_different_sums(a, b):
    assert (a == b) == (str(a) == str(b)) == (2 * a + ZERO == 2 * b + ZERO)


ZERO = LMSoftmax(scale=0.125)


def test_the_issues_example():
    objective = CosFace(scale=64, margin=0.35) + 0.5 * SampleMargin() + 100 * ZeroCentroid()
    text = "CosFace(s=64, m=0.35) + 0.5*R_sm + 100*R_w"
    assert objective == parse(text)
    assert str(objective) == text
    assert {objective: 1}[parse("100*R_w + R_sm/2 + AMSoftmax(scale=64, margin=0.35)")] == 1
    assert repr(objective) == (
        "1 * CosFace(scale=64.0, margin=0.35, label_smoothing=0.0) + 0.5 * SampleMargin(form='max', "
        "normalize=True) + 100 * ZeroCentroid(normalize=True)"
    )


def test_amsoftmax_is_another_name_of_cosface():
    assert AMSoftmax(scale=30, margin=0.2) == CosFace(scale=30, margin=0.2) == parse("AMSoftmax(s=30, m=0.2)")


@pytest.mark.usefixtures("unchecked")
def test_an_integer_a_sequence_and_a_tensor_say_the_same_as_floats():
    assert CosFace(scale=64, margin=0) == CosFace(scale=64.0, margin=0.0)
    assert str(CosFace(scale=64, margin=0)) == "CosFace(s=64, m=0)"
    of_list, of_tensor = ([0.25, 0.5], torch.tensor([0.25, 0.5]))
    assert CosFace(scale=1, margin=of_list) == CosFace(scale=1, margin=of_tensor)
    assert CosFace(scale=1, margin=torch.tensor(0.25)) == CosFace(scale=1, margin=0.25)


def test_terms_are_frozen_and_pickle(examples):
    for term in examples.values():
        assert pickle.loads(pickle.dumps(2 * term)) == 2 * term
        with pytest.raises(AttributeError):
            term.anything = 1


def test_the_value_of_a_sum_is_the_sum_of_values(batch):
    z, w, y = batch
    a, b, c = parse("CosFace(s=8, m=0.2)"), parse("CE"), parse("R_w")
    torch.testing.assert_close((a - 2 * b + 100 * c)(z, w, y), a(z, w, y) - 2 * b(z, w, y) + 100 * c(z, w, y))


@pytest.mark.parametrize(
    ("text", "first", "space", "scale"),
    [
        ("R_w + R_sm + CosFace(s=8, m=0.1) + NormFace(s=9)", "CosFace(s=8, m=0.1)", "cosine", 8.0),
        ("R_sm + CE", "CE", "raw", 1.0),
        ("SphereFace(s=3, m=2, normalize_features=False)", None, "unit_prototypes", 3.0),
        ("MHE + R_sm", "MHE", "cosine", 1.0),
    ],
)
def test_the_first_loss_gives_the_logits(text, first, space, scale):
    objective = parse(text)
    assert str(first_loss(objective)) == (first or text)
    assert logit_space(objective) == (space, scale)


@pytest.mark.parametrize(
    ("make", "error", "wording"),
    [
        (lambda: CrossEntropy() * CrossEntropy(), TypeError, "scales with a number, not with another"),
        (lambda: CrossEntropy() * float("nan"), ValueError, "coefficient of an objective must be finite"),
        (lambda: 1e200 * CrossEntropy() * 1e200, ValueError, "coefficient of an objective must be finite"),
        (lambda: CrossEntropy() * True, TypeError, "must be a number, got True"),
        (lambda: CrossEntropy() / 0, ValueError, "cannot be divided by 0"),
        (lambda: CrossEntropy() - CrossEntropy(), ValueError, "every coefficient is 0"),
        (lambda: 0 * CrossEntropy(), ValueError, "every coefficient is 0"),
        (lambda: CrossEntropy() + 1, TypeError, "unsupported operand"),
        (lambda: CrossEntropy() + torch.zeros(2), TypeError, "unsupported operand"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_objective_is_refused(make, error, wording):
    with pytest.raises(error, match=wording):
        make()

"""Objectives add, scale, compare and print like the formulas they stand for."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Wrong types are what is tested.

import ast
import copy
import dataclasses
import inspect
import pickle

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tammes
from tammes import PrototypeHead
from tammes.losses import (
    CATALOGUE,
    LDAM,
    AdaCos,
    AdaFace,
    AMSoftmax,
    ArcFace,
    BalancedSoftmax,
    Circle,
    CombinedMargin,
    CosFace,
    CrossEntropy,
    CurricularFace,
    ElasticFace,
    Focal,
    GMSoftmax,
    HypersphericalEnergy,
    LabelAware,
    Learnable,
    LMSoftmax,
    LogitAdjusted,
    LSoftmax,
    MagFace,
    MVSoftmax,
    NormFace,
    R_sm,
    SampleMargin,
    SphereFace,
    VectorScaling,
    ZeroCentroid,
    parse,
)
from tammes.losses._engine.batch_loss import loss
from tammes.losses._engine.objective_plan import first_loss, logit_space
from tammes.losses.catalogue import TERM_NAMES
from tammes.losses.objective import SHORT_NAMES

# The type checks of the tests look at a random item of a list.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

scales = st.floats(1e-3, 1e4)
smoothings = st.floats(0, 1)


def numbers(low: float, high: float):
    """One number, or one for each of a few classes."""
    some = st.floats(low, high)
    return some | st.lists(some, min_size=2, max_size=4).map(tuple)


counts = st.none() | st.lists(st.floats(1, 1e9), min_size=2, max_size=4).map(tuple)
forms = st.sampled_from(["arc", "cos"])
TERMS = {
    CrossEntropy: st.builds(CrossEntropy, normalize=st.just(True), scale=scales, label_smoothing=smoothings),
    Focal: st.builds(Focal, gamma=st.floats(0, 100), label_smoothing=smoothings),
    LSoftmax: st.builds(LSoftmax, margin=numbers(1, 100)),
    AdaCos: st.builds(AdaCos, dynamic=st.booleans()),
    NormFace: st.builds(NormFace, scale=scales | scales.map(Learnable), label_smoothing=smoothings),
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
        counts=counts,
        C=st.none() | st.floats(0.1, 9),
    ),
    LabelAware: st.builds(
        LabelAware,
        head=st.floats(0, 1),
        tail=st.floats(0, 1),
        counts=counts,
    ),
    BalancedSoftmax: st.builds(BalancedSoftmax, counts=counts, normalize=st.just(True), scale=scales),
    LogitAdjusted: st.builds(LogitAdjusted, tau=st.floats(0, 10), counts=counts),
    VectorScaling: st.builds(VectorScaling, gamma=st.floats(0, 10), tau=st.floats(0, 10), counts=counts),
    AdaFace: st.builds(AdaFace, scale=scales, margin=st.floats(0, 1.5), momentum=smoothings),
    MagFace: st.builds(MagFace, scale=scales, low_norm=st.floats(1, 9), high_margin=st.floats(0.5, 1.5)),
    ElasticFace: st.builds(ElasticFace, margin=numbers(0, 1.5), std=smoothings, form=forms),
    CurricularFace: st.builds(CurricularFace, margin=numbers(0, 1.5), momentum=smoothings),
    MVSoftmax: st.builds(
        MVSoftmax,
        margin=numbers(0, 1.5),
        t=st.floats(1, 10),
        form=forms,
        emphasis=st.sampled_from(["adaptive", "fixed"]),
    ),
    Circle: st.builds(Circle, scale=scales, margin=smoothings),
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


def short(term):
    """The parameters of `term`, those that have a short name under it."""
    names = {field.name: SHORT_NAMES.get(field.name, field.name) for field in dataclasses.fields(term)}
    return {word: getattr(term, field) for field, word in names.items()}


def test_short_and_long_names_make_the_same_term(examples):
    assert {type(term) for term in examples.values()} == set(CATALOGUE)
    for term in examples.values():
        twin = type(term)(**short(term))
        assert twin == term
        assert hash(twin) == hash(term)
        assert repr(twin) == repr(term)
        assert str(twin) == str(term)
        assert dataclasses.replace(twin) == copy.deepcopy(twin) == pickle.loads(pickle.dumps(twin)) == term
    assert dataclasses.replace(CosFace(s=64, m=0.35), margin=0.2) == CosFace(scale=64, margin=0.2)


def test_a_parameter_is_given_by_one_of_its_names():
    with pytest.raises(TypeError, match="CosFace takes m or margin, not both"):
        CosFace(s=64, m=0.35, margin=0.35)
    with pytest.raises(TypeError, match=r"missing .* required .*argument: 'margin'"):
        CosFace(s=64)
    with pytest.raises(TypeError, match="unexpected keyword argument 's'"):
        LSoftmax(s=64)


def test_a_class_is_not_yet_a_term():
    for wrong in (lambda: 0.5 * R_sm, lambda: CrossEntropy() + R_sm, lambda: R_sm + CrossEntropy()):
        with pytest.raises(TypeError, match=r"write SampleMargin\(\)"):
            wrong()


@pytest.mark.parametrize("kind", CATALOGUE)
def test_type_checkers_see_the_fields_under_both_names(kind):
    """The overloads, which are for type checkers alone, do not fall behind the fields."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    assert list(inspect.signature(kind).parameters) == list(fields)
    (body,) = ast.parse(inspect.getsource(kind)).body
    given = {node.target.id: node for node in ast.walk(body) if isinstance(node, ast.AnnAssign)}
    wanted = {True: [], False: []}
    for name in fields:
        node = given[name]
        default = None if node.value is None else ast.unparse(node.value)
        for abbreviate, words in wanted.items():
            word = SHORT_NAMES.get(name, name) if abbreviate else name
            words.append((word, ast.unparse(node.annotation), default))
    written = [
        [
            (arg.arg, ast.unparse(arg.annotation), None if default is None else ast.unparse(default))
            for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        ]
        for node in ast.walk(body)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__" and node.decorator_list
    ]
    assert written == ([wanted[False], wanted[True]] if fields.keys() & SHORT_NAMES.keys() else [])


def test_every_name_of_the_text_form_is_a_name_in_python():
    for name, kind in TERM_NAMES.items():
        assert getattr(tammes, name) is getattr(tammes.losses, name) is kind
        assert name in (kind.__name__, *kind.__doc__.replace(".", " ").replace(",", " ").split())


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_are_numbers():
    assert CosFace(s=np.float32(64), m=np.float16(0.25)) == CosFace(s=64, m=0.25)
    assert CosFace(s=np.int64(64), m=np.array([0.25, 0.5])) == CosFace(s=64, m=[0.25, 0.5])
    assert type(NormFace(s=np.float32(64)).scale) is float
    assert LDAM(s=np.int32(30), counts=np.array([500, 5])) == LDAM(s=30, counts=[500, 5])
    for half in (np.float32(0.5), np.float64(0.5), np.array([0.5])[0]):
        assert half * SampleMargin() == SampleMargin() * half == SampleMargin() / (1 / half) == 0.5 * R_sm()
    assert np.int64(2) * R_sm() == 2 * R_sm()
    with pytest.raises(TypeError, match="must be a number"):
        NormFace(s=np.bool_(True))
    with pytest.raises(ValueError, match="must be finite"):
        NormFace(s=np.float32("nan"))


def test_call_and_the_loss_have_the_same_options():
    ours, theirs = (dict(inspect.signature(f).parameters) for f in (CrossEntropy.__call__, loss))
    named = {name: p for name, p in ours.items() if p.kind is p.KEYWORD_ONLY}
    assert named == {name: p for name, p in theirs.items() if p.kind is p.KEYWORD_ONLY}
    assert len(named) == 6


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
    assert logit_space(objective) == space
    assert PrototypeHead(4, 3, objective).logit_scale == scale


@pytest.mark.parametrize(
    ("make", "error", "wording"),
    [
        (lambda: CrossEntropy() * CrossEntropy(), TypeError, "multiplied by a number, not by another"),
        (lambda: CrossEntropy() * float("nan"), ValueError, "coefficient of an objective must be finite"),
        (lambda: 1e200 * CrossEntropy() * 1e200, ValueError, "coefficient of an objective must be finite"),
        (lambda: CrossEntropy() * True, TypeError, "must be a number, got True"),
        (lambda: CrossEntropy() / 0, ValueError, "cannot be divided by 0"),
        (lambda: CrossEntropy() - CrossEntropy(), ValueError, "Every coefficient .* is 0"),
        (lambda: 0 * CrossEntropy(), ValueError, "Every coefficient .* is 0"),
        (lambda: CrossEntropy() + 1, TypeError, "unsupported operand"),
        (lambda: CrossEntropy() + torch.zeros(2), TypeError, "unsupported operand"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_objective_is_refused(make, error, wording):
    with pytest.raises(error, match=wording):
        make()

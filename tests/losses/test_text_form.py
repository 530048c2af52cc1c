"""The text form: what it reads, what it refuses, and how it helps."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Wrong types are what is tested.

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tammes.losses import (
    CATALOGUE,
    LDAM,
    ArcFace,
    CrossEntropy,
    Focal,
    HypersphericalEnergy,
    LabelAware,
    LMSoftmax,
    LSoftmax,
    Objective,
    SampleMargin,
    SphereFace,
    ZeroCentroid,
    parse,
)
from tammes.losses.catalogue import TERM_NAMES


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("CE", CrossEntropy()),
        ("Focal(gamma=1)", Focal()),
        ("LSoftmax(m=4)", LSoftmax()),
        ("LMSoftmax(s=16, reduction='lse')", LMSoftmax(scale=16, reduction="lse")),
        (
            'ArcFace(s=64, m=0.5, beyond_pi="clip", gradient="straight_through")',
            ArcFace(scale=64, margin=0.5, beyond_pi="clip", gradient="straight_through"),
        ),
        ("ArcFace(scale=64, margin=(0.1, 0.5))", ArcFace(scale=64, margin=[0.1, 0.5])),
        (
            "SphereFace(s=1, m=4, normalize_features=False)",
            SphereFace(scale=1, margin=4, normalize_features=False),
        ),
        ("LDAM(s=30, counts=[500, 5], max_margin=0.4)", LDAM(scale=30, counts=(500, 5), max_margin=0.4)),
        ("LDAM(s=30, C=0.7)", LDAM(scale=30, C=0.7)),
        ("LAS(head=0.4, counts=[500, 5])", LabelAware(head=0.4, counts=(500, 5))),
        ("R_sm(form='mean')", SampleMargin(form="mean")),
        ("SampleMargin(normalize=False)", SampleMargin(normalize=False)),
        ("-R_w(normalize=False)/2", -0.5 * ZeroCentroid(normalize=False)),
        ("MHE(power=2)", HypersphericalEnergy(power=2)),
        ("  2*(CE - 3*(R_w + R_sm))  ", 2 * CrossEntropy() - 6 * ZeroCentroid() - 6 * SampleMargin()),
        ("CE*-1e-3", -0.001 * CrossEntropy()),
    ],
)
def test_reads(text, value):
    assert parse(text) == value


def test_every_name_of_the_catalogue_is_known():
    assert {kind.text_name for kind in CATALOGUE} | {kind.__name__ for kind in CATALOGUE} <= set(TERM_NAMES)


REFUSED = {
    "CosFase(s=64, m=0.1)": "Unknown term 'CosFase'.*Did you mean CosFace",
    "cosface(s=64, m=0.1)": "Did you mean CosFace",
    "R_ms": "Did you mean R_sm",
    "Xyzzy": "Unknown term 'Xyzzy'.*Known: .*AMSoftmax.*ZeroCentroid",
    "CosFace(s=64, margn=0.1)": "CosFace has no parameter 'margn'.*Did you mean margin",
    "CosFace(scal=64, m=0.1)": "CosFace has no parameter 'scal'.*Did you mean scale",
    "LMSoftmax(s=64, label_smoothing=0.1)": "LMSoftmax has no parameter 'label_smoothing'",
    "GMSoftmax(s=64, label_smoothing=0.1)": "GMSoftmax has no parameter 'label_smoothing'",
    "R_sm(label_smoothing=0.1)": "R_sm has no parameter 'label_smoothing'",
    "CosFace(s=64)": r"CosFace needs m: CosFace\(m=...\)",
    "CosFace": "CosFace needs s and m",
    "CosFace(64, 0.35)": "takes its parameters by name",
    "CosFace(s=64, scale=32, m=0.1)": "scale is given twice",
    "CosFace(s=64, s=32, m=0.1)": "scale is given twice",
    "CosFace(s=64, m=0.1": "Cannot read the objective .*SyntaxError. Write it like",
    "": "Cannot read the objective",
    "CE\0": "Cannot read the objective",
    "3": "does not name a term",
    "'CE'": "does not name a term",
    "CE + 1": "Terms can be added to terms",
    "CE * R_w": "Terms can be added to terms",
    "CE / 0": "cannot be divided by 0",
    "1 / CE": "Terms can be added to terms",
    "CE + 'R_w'": "Only terms and numbers can be added",
    "-'CE'": "Only terms and numbers can be added",
    "CE ** 2": "Cannot read 'CE \\*\\* 2'",
    "CE if 1 else R_w": "Cannot read",
    "__import__('os').system('true')": "Cannot read",
    "CE.__class__": "Cannot read",
    "[CE for _ in (1,)]": "Cannot read",
    "CE - CE": "Every coefficient .* is 0",
    "CE * 1e999": "must be finite",
    "CosFace(s=0, m=0.1)": "CosFace's scale must be positive, got 0",
    "CosFace(s=" + "9" * 400 + ", m=0.1)": "CosFace's scale must be finite",
    "-" * 100_000 + "CE": "Cannot read the objective",
    "+".join(["CE"] * 30_000): "Cannot read the objective",
    "(" * 10_000: "Cannot read the objective",
    " " * 1_000_001: "at most 1,000,000 characters",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:20])
def test_refuses_with_the_way_out(text):
    with pytest.raises(ValueError, match=REFUSED[text]) as caught:
        parse(text)
    assert len(str(caught.value)) < 500


@pytest.mark.usefixtures("unchecked")
def test_text_it_must_be():
    with pytest.raises(TypeError, match="expects a string, got int"):
        parse(3)


alphabet = st.sampled_from(
    [*"()[]=,+-*/. '\"_3e", "CE", "R_sm", "CosFace", "s=", "m=", "0.5", "True", "None"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(alphabet, max_size=12).map("".join) | st.text(max_size=12))
def test_any_text_is_an_objective_or_a_clear_error(text):
    try:
        outcome = parse(text)
    except (ValueError, TypeError) as error:
        outcome = error
    assert isinstance(outcome, Objective) or str(outcome).endswith((".", "?"))

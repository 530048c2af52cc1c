"""Which scales are too small or too large, and that the head says so once."""

import math
import re
import warnings
from pathlib import Path

import pytest
import torch

from tammes import PrototypeHead, parse, suggest_scale
from tammes.heads import prototype
from tammes.losses import NormFace
from tammes.losses.advice import GUIDE, scale_warnings

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch):
    """As in a fresh process."""
    monkeypatch.setattr(prototype, "ADVICE_GIVEN", set())


def at_the_simplex(k: int, lead: float, scale: float, margin: float = 0.0) -> float:
    """Softmax of the true class when its cosine leads all others by `lead`."""
    return 1 / (1 + (k - 1) * math.exp(-scale * (lead - margin)))


@pytest.mark.parametrize(("k", "margin"), [(2, 0.0), (10, 0.0), (10, 0.35), (93_431, 0.4)])
def test_the_suggested_scale_reaches_its_confidence_at_the_largest_margins(k, margin):
    advice = suggest_scale(k, margin=margin, confidence=0.95)
    lead = k / (k - 1)
    assert at_the_simplex(k, lead, advice.scale, margin) == pytest.approx(0.95)
    assert at_the_simplex(k, lead, advice.least, margin) == pytest.approx(0.5)
    assert advice.least < advice.scale <= advice.largest
    if math.isfinite(advice.largest):
        wrong = 1 - at_the_simplex(k, lead / 2, advice.largest, margin)
        assert wrong == pytest.approx(1e-6, rel=1e-3) or advice.largest == advice.scale
    for number in (f"k = {k}", f"m = {margin:g}", f"s = {advice.scale:.3g}", "0.95"):
        assert number in advice.reason


def test_the_least_normface_loss_is_that_of_the_advisor():
    """A simplex of 5 classes: below the least scale NormFace stays above log 2, above it goes below."""
    k = 5
    w = torch.eye(k, dtype=torch.float64) - 1 / k
    least = suggest_scale(k).least
    for factor, below in ((0.9, False), (1.1, True)):
        loss = NormFace(scale=factor * least)(w, w, torch.arange(k))
        assert (loss.item() < math.log(2)) == below


SILENT = [
    "NormFace(s=16)",
    "CosFace(s=64, m=0.35)",
    "SphereFace(s=12, m=1.5)",
    "CombinedMargin(s=12, m1=1.2, m2=0.1)",
    "NormFace(s=64, label_smoothing=0.1)",
    "CE",
    "Focal",
    "LSoftmax",
    "LMSoftmax(s=512)",
    "R_sm + 100*R_w",
    "NormFace(s=64) + 0.5*R_sm",
    f"CosFace(s=512, m={[0.1] * 10})",
]
LOUD = {
    "NormFace(s=1)": "cannot fall below 1.38 with 10 classes; try s=6.11:",
    "NormFace(s=512)": "s=512 is too large for 10 classes",
    "CosFace(s=8, m=1.2)": "cannot fall below",
    "ArcFace(s=64, m=0.5)": "^s=64 is too large for 10 classes; try s=6 or add '\\+ 0.5\\*R_sm':",
    "SphereFace(s=200, m=1.5)": "s=200 is too large for 10 classes",
    "R_w + CombinedMargin(s=1)": "CombinedMargin.* cannot fall below",
}


@pytest.mark.parametrize("text", SILENT)
def test_sound_scales_pass_in_silence(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrototypeHead(16, 10, parse(text))


@pytest.mark.parametrize("text", LOUD)
def test_unsound_scales_are_named_in_one_line(text):
    with pytest.warns(UserWarning, match=LOUD[text]) as caught:
        head = PrototypeHead(16, 10, parse(text))
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert len(str(caught[0].message)) < 130
    assert (ROOT / GUIDE).is_file()
    assert str(caught[0].message).endswith(GUIDE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head(torch.randn(3, 16), torch.arange(3))


def test_the_loss_in_the_warning_is_that_of_the_simplex():
    k = 10
    w = torch.eye(k, dtype=torch.float64) - 1 / k
    (line,) = scale_warnings(NormFace(scale=1), k, k / (k - 1))
    assert f" below {NormFace(scale=1)(w, w, torch.arange(k)).item():.3g} " in line


def test_a_warning_comes_once_a_process():
    with pytest.warns(UserWarning, match="s=512 is too large"):
        PrototypeHead(16, 10, NormFace(scale=512))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrototypeHead(16, 10, NormFace(scale=512))
    with pytest.warns(UserWarning, match="too large for 11"):  # another head, another line
        PrototypeHead(16, 11, NormFace(scale=512))


@pytest.mark.parametrize("text", ["ArcFace(s=64, m=0.5)", "CosFace(s=64, m=0.35)", "CosFace(s=64, m=0.4)"])
@pytest.mark.parametrize("people", [10_572, 85_742, 93_431, 360_232])
def test_published_face_settings_pass_at_the_sizes_they_were_made_for(text, people):
    assert scale_warnings(parse(text), people, people / (people - 1)) == []


def test_others_at_these_sizes_do_not_pass():
    assert scale_warnings(NormFace(scale=64), 10_572, 1.0)
    assert scale_warnings(parse("ArcFace(s=64, m=0.5)"), 9_999, 1.0)


def test_more_classes_than_fit_the_simplex_need_larger_scales():
    """20 classes in the plane can lead by 1 - cos(18 deg) = 0.05 only; the scale offered is one for that."""
    with pytest.warns(UserWarning, match="cannot fall below .* with 20 classes") as caught:
        PrototypeHead(2, 20, NormFace(scale=16))
    (offered,) = map(float, re.findall(r"try s=(\S+): ", str(caught[0].message)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrototypeHead(2, 20, NormFace(scale=offered))
        PrototypeHead(20, 20, NormFace(scale=16))


def test_three_classes_on_a_line_are_hopeless():
    with pytest.warns(UserWarning, match="cannot fall below 1.1 with 3 classes; try s=inf"):
        PrototypeHead(1, 3, NormFace(scale=16))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "wording"),
    [
        ({"num_classes": 1}, "num_classes must be at least 2, got 1"),
        ({"num_classes": 10, "margin": 1.0}, r"margin must lie in \[0, 0.9\], got 1.0"),
        ({"num_classes": 10, "confidence": 1.0}, "confidence must lie in"),
    ],
)
def test_the_advisor_refuses(options, wording):
    with pytest.raises(ValueError, match=wording):
        suggest_scale(**options)

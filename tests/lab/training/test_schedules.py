import math
from typing import get_args

import pytest

from tammes import parse
from tammes.lab.training.config import Schedule
from tammes.lab.training.engine import learning_rate
from tammes.lab.training.margin_warmup import MARGINS, with_margins


@pytest.mark.parametrize("schedule", get_args(Schedule))
@pytest.mark.parametrize("warmup", [0.0, 0.2])
def test_learning_rates_peak_at_one_and_end_where_they_should(schedule, warmup):
    warmup = 0.0 if schedule == "one-cycle" else warmup
    shares = [i / 1000 for i in range(1001)]
    factors = [learning_rate(schedule, p, warmup=warmup, milestones=(0.5, 0.75)) for p in shares]
    assert max(factors) == pytest.approx(1.0, abs=2e-3)
    assert min(factors) >= 0
    end = {"cosine": 0.0, "one-cycle": 0.0, "step": 0.01, "polynomial": 0.0, "constant": 1.0}[schedule]
    assert factors[-1] == pytest.approx(end)
    if warmup:
        rise = factors[:200]
        assert rise == sorted(rise)
        assert rise[0] == pytest.approx(0.01)


def test_the_cosine_is_a_cosine_the_polynomial_a_square_and_steps_are_tenths():
    assert learning_rate("cosine", 0.3) == pytest.approx((1 + math.cos(0.3 * math.pi)) / 2)
    assert learning_rate("polynomial", 0.3) == pytest.approx(0.49)
    assert learning_rate("polynomial", 0.6, warmup=0.2) == pytest.approx(0.25)
    assert [learning_rate("step", p, milestones=(0.5, 0.8)) for p in (0.49, 0.5, 0.9)] == pytest.approx(
        [1.0, 0.1, 0.01]
    )


@pytest.mark.parametrize(
    ("text", "none", "half"),
    [
        ("CosFace(s=9, m=0.4)", "CosFace(s=9, m=0)", "CosFace(s=9, m=0.2)"),
        ("ArcFace(s=9, m=[0.4, 0.2])", "ArcFace(s=9, m=[0, 0])", "ArcFace(s=9, m=[0.2, 0.1])"),
        ("SphereFace(s=9, m=3)", "SphereFace(s=9, m=1)", "SphereFace(s=9, m=2)"),
        ("LSoftmax(m=2)", "LSoftmax(m=1)", "LSoftmax(m=1.5)"),
        (
            "CombinedMargin(s=9, m1=2, m2=0.5, m3=0.2)",
            "CombinedMargin(s=9)",
            "CombinedMargin(s=9, m1=1.5, m2=0.25, m3=0.1)",
        ),
        ("LDAM(s=9, max_margin=0.5)", "LDAM(s=9, max_margin=0)", "LDAM(s=9, max_margin=0.25)"),
        ("AdaFace(m=0.2)", "AdaFace(m=0)", "AdaFace(m=0.1)"),
        (
            "MagFace(low_margin=0.2, high_margin=0.4)",
            "MagFace(low_margin=0, high_margin=0)",
            "MagFace(low_margin=0.1, high_margin=0.2)",
        ),
        ("ElasticFace(m=0.2)", "ElasticFace(m=0)", "ElasticFace(m=0.1)"),
        ("CurricularFace(m=0.2)", "CurricularFace(m=0)", "CurricularFace(m=0.1)"),
        ("MVSoftmax(m=0.2)", "MVSoftmax(m=0)", "MVSoftmax(m=0.1)"),
    ],
)
def test_margins_grow_from_none_to_their_own(text, none, half):
    whole = parse(f"{text} + 0.5*R_sm")
    assert with_margins(whole, 0.0) == parse(f"{none} + 0.5*R_sm")
    assert with_margins(whole, 0.5) == parse(f"{half} + 0.5*R_sm")
    assert with_margins(whole, 1.0) == whole


def test_every_margin_has_a_warm_up_test():
    assert len(MARGINS) == 11

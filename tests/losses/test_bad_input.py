"""Bad input to losses is refused with the rule, the value received and the way out."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Wrong types are what is tested.

import math

import pytest
import torch

from tammes.losses import (
    LDAM,
    VS,
    AdaFace,
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
    LMSoftmax,
    LogitAdjusted,
    LSoftmax,
    MagFace,
    MixedLabels,
    MVSoftmax,
    NormFace,
    SampleMargin,
    SphereFace,
    ZeroCentroid,
    dynamic_margins,
    ldam_margins,
    parse,
)

pytestmark = pytest.mark.usefixtures("unchecked")

CONSTRUCTORS = [
    (lambda: NormFace(scale=0), ValueError, "NormFace's scale must be positive, got 0"),
    (lambda: NormFace(scale=-1), ValueError, "NormFace's scale must be positive, got -1"),
    (lambda: NormFace(scale=math.nan), ValueError, "NormFace's scale must be finite, got nan"),
    (lambda: CosFace(scale=math.inf, margin=0.1), ValueError, "CosFace's scale must be finite, got inf"),
    (lambda: ArcFace(scale="64", margin=0.1), TypeError, "ArcFace's scale must be a number, got '64'"),
    (lambda: LMSoftmax(scale=True), TypeError, "LMSoftmax's scale must be a number, got True"),
    (lambda: NormFace(scale=10**400), ValueError, "NormFace's scale must be finite"),
    (lambda: CrossEntropy(scale=2), ValueError, r"CE of raw inner products takes no scale.*normalize=True"),
    (lambda: Focal(scale=2), ValueError, r"Focal of raw inner products takes no scale.*normalize=True"),
    (lambda: Focal(gamma=-1), ValueError, r"Focal's gamma must lie in \[0, 100\], got -1"),
    (lambda: CosFace(scale=1, margin=-0.1), ValueError, r"CosFace's margin must lie in \[0, 2\], got -0.1"),
    (lambda: CosFace(scale=1, margin=2.1), ValueError, r"CosFace's margin must lie in \[0, 2\], got 2.1"),
    (lambda: CosFace(scale=1, margin=math.nan), ValueError, "CosFace's margin must be finite, got nan"),
    (lambda: CosFace(scale=1, margin=None), TypeError, "CosFace's margin must be a number or a sequence"),
    (lambda: CosFace(scale=1, margin="0.3"), TypeError, "a number or a sequence .* got '0.3'"),
    (lambda: CosFace(scale=1, margin=["0.3", 1]), TypeError, r"CosFace's margin\[0\] must be a number"),
    (lambda: CosFace(scale=1, margin=[0.1, 3]), ValueError, r"CosFace's margin\[1\] must lie in \[0, 2\]"),
    (lambda: CosFace(scale=1, margin=[0.1]), ValueError, "per class needs at least 2 classes, got 1"),
    (lambda: ArcFace(scale=1, margin=28.6), ValueError, r"ArcFace's margin must lie in .*radians"),
    (
        lambda: ArcFace(scale=1, margin=0.5, beyond_pi="wrap"),
        ValueError,
        "'linear', 'clip', 'plain', got 'wrap'",
    ),
    (lambda: ArcFace(scale=1, margin=0.5, gradient="none"), ValueError, "gradient must be one of 'exact'"),
    (lambda: ArcFace(scale=1, margin=0.5, easy_margin="no"), TypeError, "easy_margin must be True or False"),
    (lambda: SphereFace(scale=1, margin=0.9), ValueError, r"SphereFace's margin must lie in \[1, 100\]"),
    (lambda: SphereFace(scale=1, margin=2, normalize_features=0), TypeError, "must be True or False, got 0"),
    (lambda: LSoftmax(margin=0), ValueError, r"LSoftmax's margin must lie in \[1, 100\], got 0"),
    (lambda: CombinedMargin(scale=1, m1=0.5), ValueError, r"CombinedMargin's m1 must lie in \[1, 100\]"),
    (lambda: CombinedMargin(scale=1, m2=-0.1), ValueError, "CombinedMargin's m2 must lie in"),
    (lambda: CombinedMargin(scale=1, m3=3), ValueError, r"CombinedMargin's m3 must lie in \[0, 2\], got 3"),
    (lambda: GMSoftmax(scale=1, alpha1=-1), ValueError, "GMSoftmax's alpha1 must lie in"),
    (lambda: GMSoftmax(scale=1, beta2=-math.inf), ValueError, "GMSoftmax's beta2 must be finite"),
    (
        lambda: LMSoftmax(scale=1, reduction="sum"),
        ValueError,
        "must be one of 'mean', 'lse', 'none', got 'sum'",
    ),
    (lambda: NormFace(scale=1, label_smoothing=1.5), ValueError, r"label_smoothing must lie in \[0, 1\]"),
    (lambda: LMSoftmax(scale=1, label_smoothing=0.1), TypeError, "label_smoothing"),
    (lambda: GMSoftmax(scale=1, label_smoothing=0.1), TypeError, "label_smoothing"),
    (lambda: SampleMargin(label_smoothing=0.1), TypeError, "label_smoothing"),
    (lambda: SampleMargin(form="min"), ValueError, "R_sm's form must be one of 'max', 'mean', got 'min'"),
    (lambda: SampleMargin(normalize=None), TypeError, "R_sm's normalize must be True or False, got None"),
    (lambda: ZeroCentroid(normalize="no"), TypeError, "R_w's normalize must be True or False, got 'no'"),
    (lambda: CrossEntropy(normalize="no"), TypeError, "CE's normalize must be True or False, got 'no'"),
    (lambda: HypersphericalEnergy(power=-1), ValueError, r"MHE's power must lie in \[0, 100\], got -1"),
    (lambda: LDAM(scale=1, counts=[10, 0]), ValueError, "The count of class 1 must be positive, got 0"),
    (lambda: LDAM(scale=1, counts=[10, -5]), ValueError, "The count of class 1 must be positive, got -5"),
    (lambda: LDAM(scale=1, counts=[]), ValueError, "LDAM's counts per class needs at least 2 classes, got 0"),
    (lambda: LDAM(scale=1, counts=5), TypeError, "LDAM's counts must be .* a sequence .* got 5"),
    (lambda: LDAM(scale=1, max_margin=3), ValueError, r"LDAM's max_margin must lie in \[0, 2\], got 3"),
    (lambda: LDAM(scale=1, C=0), ValueError, "LDAM's C must be positive, got 0"),
    (lambda: BalancedSoftmax(scale=2), ValueError, r"BalancedSoftmax of raw inner products takes no scale"),
    (lambda: BalancedSoftmax(counts=[3, 0]), ValueError, "The count of class 1 must be positive, got 0"),
    (lambda: LogitAdjusted(tau=-1), ValueError, r"LogitAdjusted's tau must lie in \[0, 10\], got -1"),
    (lambda: VS(gamma=11), ValueError, r"VS's gamma must lie in \[0, 10\], got 11"),
    (lambda: VS(counts=5), TypeError, "VS's counts must be .* a sequence .* got 5"),
    (lambda: AdaFace(margin=22.9), ValueError, r"AdaFace's margin must lie in .*radians"),
    (lambda: AdaFace(momentum=2), ValueError, r"AdaFace's momentum must lie in \[0, 1\], got 2"),
    (lambda: MagFace(low_norm=0), ValueError, "MagFace's low_norm must be positive, got 0"),
    (lambda: MagFace(low_norm=110), ValueError, "low_norm must be below its high_norm, got 110 and 110"),
    (
        lambda: MagFace(low_margin=0.9),
        ValueError,
        "must be below its high_margin, got 0.9 and 0.8",
    ),
    (lambda: ElasticFace(form="sphere"), ValueError, "ElasticFace's form must be one of 'arc', 'cos'"),
    (lambda: ElasticFace(margin=1.8), ValueError, r"ElasticFace's margin must lie in \[0, 1.5708\], got 1.8"),
    (lambda: ElasticFace(std=-0.1), ValueError, r"ElasticFace's std must lie in \[0, 1\], got -0.1"),
    (lambda: CurricularFace(margin=28.6), ValueError, "CurricularFace's margin must lie in .*radians"),
    (lambda: MVSoftmax(t=0.5), ValueError, r"MVSoftmax's t for 'adaptive' must lie in \[1, 10\], got 0.5"),
    (lambda: MVSoftmax(emphasis="none"), ValueError, "emphasis must be one of 'adaptive', 'fixed', got"),
    (lambda: Circle(margin=1.5), ValueError, r"Circle's margin must lie in \[0, 1\], got 1.5"),
    (lambda: Circle(scale=0), ValueError, "Circle's scale must be positive, got 0"),
    (lambda: dynamic_margins([3, 4], 0.5, 0.2), ValueError, "low must be at most high, got 0.5 and 0.2"),
    (lambda: dynamic_margins([3, 0], 0.2, 0.5), ValueError, "The count of class 1 must be positive, got 0"),
    (lambda: ldam_margins([3, math.inf]), ValueError, "The count of class 1 must be finite"),
]


@pytest.mark.parametrize(("make", "error", "wording"), CONSTRUCTORS)
def test_parameters_out_of_their_range(make, error, wording):
    with pytest.raises(error, match=wording):
        make()


Z, W, Y = torch.randn(5, 3), torch.randn(4, 3), torch.tensor([0, 1, 2, 3, 0])
SOFT = torch.full((5, 4), 0.25)
OFF = torch.tensor([[0.5, 0.5, 0, 0]] * 4 + [[0.5, 0.4, 0, 0]])

BATCHES = {
    "label too large": ((Z, W, Y + 1), ValueError, r"labels must lie in \[0, 4\) or be .* got 4 in row 3"),
    "label negative": (
        (Z, W, Y - 1),
        ValueError,
        r"labels must lie in \[0, 4\) or be ignore_index=-100, got -1",
    ),
    "float labels": ((Z, W, Y.float()), TypeError, r"labels must be integers, got torch.float32.*\.long\(\)"),
    "bool labels": ((Z, W, Y > 0), TypeError, "labels must be integers, got torch.bool"),
    "a list of labels": (
        (Z, W, [0, 1, 2, 3, 0]),
        TypeError,
        "labels must be a tensor or MixedLabels, got list",
    ),
    "too few labels": ((Z, W, Y[:3]), ValueError, r"labels must have shape \(5,\).*got \(3,\)"),
    "integer label matrix": ((Z, W, Y[:, None]), ValueError, r"labels must be a vector.*got shape \(5, 1\)"),
    "columns": ((Z[:, :2], W, Y), ValueError, r"embeddings must have 3 columns.*got shape \(5, 2\)"),
    "embeddings a vector": ((Z[0], W, Y[:1]), ValueError, r"embeddings must be a matrix.*got shape \(3,\)"),
    "integer embeddings": ((Z.long(), W, Y), TypeError, r"embeddings must be floating.*\.float\(\)"),
    "weight a vector": ((Z, W[0], Y), ValueError, r"weight must be a matrix.*got shape \(3,\)"),
    "integer weight": ((Z, W.long(), Y), TypeError, "weight must be floating point, got torch.int64"),
    "one class": ((Z, W[:1], 0 * Y), ValueError, r"at least 2 classes, got shape \(1, 3\)"),
    "empty batch": ((Z[:0], W, Y[:0]), ValueError, r"at least one row, got shape \(0, 3\). Skip empty"),
    "soft shape": ((Z, W, SOFT[:, :3]), ValueError, r"Soft targets must have shape \(5, 4\).*got \(5, 3\)"),
    "soft negative": ((Z, W, SOFT - 0.5), ValueError, "Soft targets must not be negative, got -0.25"),
    "soft sums": (
        (Z, W, OFF),
        ValueError,
        r"Soft targets must sum to 1 in each row, got 0.9 in row 4.*Divide",
    ),
    "soft NaN": ((Z, W, SOFT * math.nan), ValueError, "Soft targets must not be negative, got nan"),
    "mixed range": ((Z, W, MixedLabels(Y, Y + 1, 0.5)), ValueError, r"labels must lie in \[0, 4\)"),
    "lam above 1": ((Z, W, MixedLabels(Y, Y, 1.5)), ValueError, r"lam must lie in \[0, 1\], got 1.5"),
    "lam NaN": ((Z, W, MixedLabels(Y, Y, math.nan)), ValueError, r"lam must lie in \[0, 1\], got nan"),
    "lam shape": ((Z, W, MixedLabels(Y, Y, torch.ones(2))), ValueError, r"one number or have shape \(5,\)"),
    "soft mixed": (
        (Z, W, MixedLabels(SOFT, SOFT, 0.5)),
        ValueError,
        r"MixedLabels take class indices \(n,\)",
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches(name):
    arguments, error, wording = BATCHES[name]
    with pytest.raises(error, match=wording):
        NormFace(scale=8)(*arguments)


NAN = Z.clone().index_put_((torch.tensor(2), torch.tensor(1)), torch.tensor(math.nan))
OPTIONS = {
    "reduction": ({"reduction": "sum"}, ValueError, "reduction must be one of 'mean', 'none', got 'sum'"),
    "sample_weight shape": (
        {"sample_weight": torch.ones(4)},
        ValueError,
        r"sample_weight must have shape \(5,\)",
    ),
    "sample_weight sign": (
        {"sample_weight": -torch.ones(5)},
        ValueError,
        "sample_weight must be at least 0.*got -1",
    ),
    "sample_weight NaN": ({"sample_weight": NAN[:, 1]}, ValueError, "sample_weight must be .* finite"),
    "class_weight length": ({"class_weight": torch.ones(3)}, ValueError, r"must have 4 entries.*got \(3,\)"),
    "class_weight sign": (
        {"class_weight": torch.tensor([1, 1, -2, 1])},
        ValueError,
        "at least 0.*got -2 at 2",
    ),
    "counts length": (
        {"class_counts": [1, 2, 3]},
        ValueError,
        r"class_counts must have 4 entries.*got \(3,\)",
    ),
    "counts zero": ({"class_counts": [1, 2, 0, 3]}, ValueError, "class_counts must be positive.*got 0 at 2"),
    "counts infinite": (
        {"class_counts": [1, math.inf, 1, 3]},
        ValueError,
        "positive and finite, got inf at 1",
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    options, error, wording = OPTIONS[name]
    with pytest.raises(error, match=wording):
        NormFace(scale=8)(Z, W, Y, **options)


@pytest.mark.parametrize(
    ("text", "wording"),
    [
        ("LDAM(s=8)", r"LDAM needs class counts: pass LDAM\(counts=\[...\]\), or class_counts="),
        ("LAS", r"LAS needs class counts: pass LAS\(counts=\[...\]\), or class_counts="),
        ("VS", r"VS needs class counts: pass VS\(counts=\[...\]\), or class_counts="),
        ("BalancedSoftmax(counts=[3, 4, 5])", "BalancedSoftmax has offset for 3 classes, but there are 4"),
        ("LAS(counts=[3, 4, 5])", "LAS has smoothing for 3 classes, but there are 4"),
        ("LDAM(s=8, counts=[3, 4, 5])", "LDAM has margin for 3 classes, but there are 4"),
        ("R_w + CosFace(s=8, m=[0.1, 0.2, 0.3])", "CosFace has margin for 3 classes, but there are 4"),
    ],
)
def test_parameters_per_class_must_fit_the_classes(text, wording):
    with pytest.raises(ValueError, match=wording):
        parse(text)(Z, W, Y)


@pytest.mark.parametrize("text", ["CurricularFace", "MVSoftmax"])
def test_logits_that_depend_on_the_label_refuse_soft_targets(text):
    with pytest.raises(ValueError, match=rf"{text} weights wrong classes .* class indices or MixedLabels"):
        parse(text)(Z, W, SOFT)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_are_named_when_asked_for(value):
    embeddings = Z.clone()
    embeddings[2, 1] = value
    with pytest.raises(
        ValueError, match=rf"embeddings must be finite, got {value} at \[2, 1\]. Common causes"
    ):
        NormFace(scale=8)(embeddings, W, Y, check=True)
    assert not NormFace(scale=8)(NAN, W, Y).isfinite()

"""The table of all losses in the catalogue, and the figure of their target logits."""

import dataclasses
import math
import re
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tammes.lab.report.figure_files import save_figure
from tammes.losses import CATALOGUE, SampleTerm, Scores, Term, parse
from tammes.losses.objective import SHORT_NAMES, PrototypeTerm

SOFTMAX = "softplus(rest - s f)"


class About(NamedTuple):
    """Formula and use of a loss, which are not in the catalogue."""

    formula: str
    use: str


ABOUT = {
    "CE": About("softplus(rest - x)", "the baseline; raw inner products x"),
    "Focal": About("(1 - p)^gamma (-log p)", "many easy samples"),
    "LSoftmax": About("softplus(rest - norm(z) norm(w) psi(m theta))", "for comparisons"),
    "NormFace": About("softplus(rest - s t)", "closed sets; needs only s"),
    "AdaCos": About(
        "softplus(rest - s t), s = log B / cos min(pi/4, median theta), B = mean exp(rest)",
        "no parameter at all",
    ),
    "CosFace": About(f"{SOFTMAX}, f = t - m", "open sets; the easiest margin to train"),
    "ArcFace": About(f"{SOFTMAX}, f = cos(theta + m)", "open sets, many classes"),
    "SphereFace": About(f"{SOFTMAX}, f = psi(m theta)", "for comparisons"),
    "CombinedMargin": About(f"{SOFTMAX}, f = psi(m1 theta + m2) - m3", "to tune a mixture of margins"),
    "GMSoftmax": About("logaddexp(rest, s (a2 t + b2)) - s (a1 t + b1)", "the paper's general form"),
    "LMSoftmax": About("rest / s - t", "largest margins; `lse` if k > d + 1 or classes are imbalanced"),
    "LDAM": About(f"{SOFTMAX}, f = t - C n_y^(-1/4)", "imbalanced classes, with deferred re-weighting"),
    "LAS": About("cross-entropy smoothed by class frequency", "imbalanced classes, second stage"),
    "BalancedSoftmax": About(
        "softplus(rest - x_y), x_j = s c_j + log n_j", "imbalanced classes; no parameter"
    ),
    "LogitAdjusted": About("softplus(rest - x_y), x_j = s c_j + tau log pi_j", "imbalanced classes, tunable"),
    "VS": About(
        "softplus(rest - x_y), x_j = (n_j / n_max)^gamma s c_j + tau log pi_j", "strongly imbalanced classes"
    ),
    "AdaFace": About(
        f"{SOFTMAX}, f = cos(theta - m q) - m (1 + q), q the standardized norm(z)", "images of mixed quality"
    ),
    "MagFace": About(
        f"{SOFTMAX} + strength (a / u^2 + 1 / a), f = cos(theta + m(a)), a = norm(z)",
        "quality from the norm",
    ),
    "ElasticFace": About(f"{SOFTMAX}, margin drawn from N(m, std^2)", "open sets; margins of varying size"),
    "CurricularFace": About(
        f"{SOFTMAX}, wrong c > f become c (t + c), t = running mean of t_i", "many hard wrong classes"
    ),
    "MVSoftmax": About(f"{SOFTMAX}, wrong c > f become t c + t - 1 or c + t", "many hard wrong classes"),
    "Circle": About(
        "softplus(rest - s [1+m-t]+ (t-1+m)), wrong c become [c+m]+ (c-m)", "open sets; soft decision circle"
    ),
    "R_sm": About("hardest - t", "add 0.5 to open sample margins"),
    "R_w": About("norm(mean w)^2", "add 100 to spread prototypes of imbalanced classes"),
    "MHE": About("mean norm(w_i - w_j)^(-t)", "spread prototypes when k > d + 1"),
}
"""By text name: the loss of a sample in the numbers of `Scores` (t the target cosine), and when to use it."""

NEEDED = {"CosFace": "m=0.35", "ArcFace": "m=0.5", "SphereFace": "m=1.35"}
"""Usual margins where a loss has no default."""


def loss_table() -> str:
    """One Markdown row per catalogue entry: formula, what it reads, parameters, reference, use."""
    lines = ["| loss | formula | reads | parameters | use | reference |", "|---|---|---|---|---|---|"]
    for kind in CATALOGUE:
        about = ABOUT[kind.text_name]
        cells = (f"`{kind.text_name}`", f"`{about.formula}`", _reads(kind), _parameters(kind), about.use)
        lines.append("| " + " | ".join([*cells, _reference(kind)]) + " |")
    return "\n".join(lines) + "\n"


def example_of(kind: type[Term]) -> Term:
    """A term with usual parameters."""
    words = [f"s={64 if kind.text_name != 'LMSoftmax' else 16}"] if _required(kind, "scale") else []
    words += [NEEDED[kind.text_name]] if _required(kind, "margin") else []
    return parse(f"{kind.text_name}({', '.join(words)})").weighted_terms[0][1]


def _required(kind: type[Term], name: str) -> bool:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    return name in fields and fields[name].default is dataclasses.MISSING


def _reads(kind: type[Term]) -> str:
    """What a term with usual parameters requires from the head, in words."""
    need = example_of(kind).need
    words = {
        "class logits": need.class_logits,
        "re-weighted rest": need.rival_map is not None,
        "rest": need.scale is not None and not need.class_logits and need.rival_map is None,
        "hardest": need.hardest,
        "smoothing": need.smoothing,
        "norms": need.norms,
        "feature norm": need.feature_norms,
        "noise": need.noise,
        "prototypes": issubclass(kind, PrototypeTerm),
    }
    space = {"raw": "raw ", "unit_prototypes": "norm-scaled "}.get(need.space, "")
    parts = ([] if issubclass(kind, PrototypeTerm) else [f"{space}target"]) + [
        w for w, on in words.items() if on
    ]
    return ", ".join(parts)


def _parameters(kind: type[Term]) -> str:
    term = example_of(kind)
    shown = []
    for field in dataclasses.fields(kind):
        value = getattr(term, field.name)
        word = SHORT_NAMES.get(field.name, field.name)
        shown.append(f"{word}={value:g}" if isinstance(value, float) else f"{word}={value}")
    return ", ".join(f"`{word}`" for word in shown)


def _reference(kind: type[Term]) -> str:
    """Authors and year, from the docstring of the class or the first line of its module."""
    module = sys.modules[kind.__module__]
    found = re.search(r"\(([A-Z][^()]* \d{4})[,)]", module.__doc__ or "")
    if found is None:
        found = re.search(r"([A-Z]\w+ et al\. \d{4})", kind.__doc__ or "")
    return found.group(1) if found else "the paper"


MARGIN_LOSSES = {
    "NormFace": ("NormFace(s=1)", 1.0),
    "CosFace, m = 0.35": ("CosFace(s=1, m=0.35)", 1.0),
    "ArcFace, m = 0.5": ("ArcFace(s=1, m=0.5)", 1.0),
    "ArcFace, m = 0.5, plain": ('ArcFace(s=1, m=0.5, beyond_pi="plain")', 1.0),
    "SphereFace, m = 1.35": ("SphereFace(s=1, m=1.35)", 1.0),
    "CombinedMargin, 1 / 0.3 / 0.2": ("CombinedMargin(s=1, m2=0.3, m3=0.2)", 1.0),
    "AdaFace, low quality": ("AdaFace(s=1)", 0.0),
    "AdaFace, high quality": ("AdaFace(s=1)", 40.0),
    "MagFace, |z| = 10": ("MagFace(s=1, strength=0)", 10.0),
    "MagFace, |z| = 110": ("MagFace(s=1, strength=0)", 110.0),
    "Circle, m = 0.25": ("Circle(s=1)", 1.0),
}
"""Label to term and feature norm; AdaFace's running statistics are a mean of 20 and a deviation of 5."""


def target_logit(term: SampleTerm, cosine: Tensor, norm: float = 1.0) -> Tensor:
    """The logit that a softmax loss with scale 1 gives the target, as a function of its cosine."""
    zeros = torch.zeros_like(cosine)
    scores = Scores.of(torch.stack([cosine, zeros], 1), zeros.long(), scale=1.0)
    state = {"mean": torch.tensor(20.0), "std": torch.tensor(5.0)}
    scores = scores._replace(rest=zeros, feature_norms=torch.full_like(cosine, norm), state=state)
    return -torch.log(torch.expm1(term.per_sample(scores)))  # the loss is softplus(-logit)


def draw_target_logits(path: Path) -> None:
    """The target logit over s against the angle, for every loss with a margin."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    degrees = torch.linspace(0, 180, 361, dtype=torch.float64)
    figure = Figure(figsize=(8.4, 5.2), layout="constrained")
    axes = figure.subplots()
    for place, (label, (text, norm)) in enumerate(MARGIN_LOSSES.items()):
        term = parse(text)
        assert isinstance(term, SampleTerm)
        logit = target_logit(term, torch.cos(degrees * math.pi / 180), norm)
        style = "--" if "plain" in label or "low" in label or label.endswith("= 10") else "-"
        color = colormaps["tab20"](2 * place % 20 + place // 10)
        axes.plot(degrees, logit, style, color=color, label=label, linewidth=1.8)
    axes.set(xlabel="angle to the true prototype, degrees", ylabel="target logit / s", xlim=(0, 180))
    axes.set_xticks(range(0, 181, 30))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9)
    save_figure(figure, path, dpi=110)

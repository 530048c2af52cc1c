"""The generalization bound of the paper's eq. 2.7, at several margins."""

import torch

from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Section, html_table
from tammes.lab.report.tables import Cell, Grid
from tammes.theory import margin_bound

GAMMAS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)

TEXT = (
    "The fraction of samples of a class with a margin below γ, averaged over classes: the first "
    "term of the bound on the error in the paper's eq. 2.7, due to Cao et al. (2019). The other two are "
    "shown for prototypes on a frozen backbone, where their constants are known. The complexity of a trained "
    "network is not known, so for it the sum is not a bound. A bound of 100 % or more is vacuous, which is "
    "usual for so few samples; what carries over is that the terms shrink as margins grow."
)


def margin_bound_table(model: ModelResults) -> list[Section]:
    """The terms of the bound; they need one margin per sample."""
    if "sample_margin" not in model.arrays:
        return []
    margins, labels = (torch.from_numpy(model.arrays[name]) for name in ("sample_margin", "label"))
    rows = []
    for gamma in GAMMAS:
        bound = margin_bound(margins, labels, gamma)
        shares = (bound.margin_loss, bound.complexity, bound.deviation, bound.total)
        rows.append([Cell(f"{gamma:g}"), *(Cell(f"{100 * share:,.2f}") for share in shares)])
    columns = ["margin γ", "below γ, %", "complexity, %", "deviation, %", "sum, %"]
    note = f"On the {model.samples:,} samples of this page, as if the prototypes had been trained on them."
    return [
        Section("Margins and error bounds", TEXT, html_table(Grid("", columns, [("", rows)], notes=[note])))
    ]

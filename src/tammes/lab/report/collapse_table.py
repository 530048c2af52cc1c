"""Measures of neural collapse of features and prototypes."""

import numpy as np
import torch

from tammes.lab.report.model_results import ModelResults, unit_rows
from tammes.lab.report.page import Section, html_table
from tammes.lab.report.tables import Cell, Grid
from tammes.metrics import neural_collapse, softmax_code_gap

MAX_CLASSES = 200
"""With more classes, the softmax-code gap takes too long to compute."""

TEXT = (
    "Towards the end of training, the features of a class converge to a point, and these points and the "
    "prototypes to a regular simplex (Papyan, Han and Donoho, 2020). Each measure is 0 at full collapse. "
    "Embeddings and prototypes are scaled to unit length first."
)


def collapse_table(model: ModelResults) -> list[Section]:
    """NC1 to NC4 of the stored embeddings, if they include every class and each has one prototype."""
    k = len(model.classes)
    if model.prototypes is None or "embedding" not in model.arrays or not 2 <= k <= MAX_CLASSES:
        return []
    labels = model.arrays["label"][model.arrays["shown"]]
    if len(np.unique(labels)) < k or len(model.prototypes) != k or model.prototypes.ndim != 2:
        return []
    features = torch.from_numpy(unit_rows(model.arrays["embedding"]))
    weight = torch.from_numpy(unit_rows(model.prototypes))
    found = neural_collapse(features, weight, torch.from_numpy(labels))
    lines = [
        ("NC1", found.nc1, "within-class variability of the features, relative to that of the class means"),
        ("NC2, means", found.nc2_means.distance, "deviation of the cosines of class means from −1/(k−1)"),
        ("NC2, prototypes", found.nc2_weight.distance, "the same of prototypes"),
        ("NC3", found.nc3, "distance of prototypes from class means"),
        ("NC4", found.nc4, "fraction of samples whose nearest class mean is not the predicted class"),
        ("softmax-code gap", softmax_code_gap(weight), _about_code(model)),
    ]
    rows = [[Cell(name), Cell(meaning), Cell(f"{value:.4f}")] for name, value, meaning in lines]
    note = f"Measured on {len(labels):,} samples."
    grid = Grid("", ["measure", "what it is", "value"], [("", rows)], words=2, notes=[note])
    return [Section("Neural collapse", TEXT, html_table(grid))]


def _about_code(model: ModelResults) -> str:
    k, d = len(model.classes), model.dimensions
    why = "" if k <= d + 1 else f", which replace the simplex for {k:,} classes in {d:,} dimensions"
    return f"deviation of the prototypes from optimally separated ones{why}"

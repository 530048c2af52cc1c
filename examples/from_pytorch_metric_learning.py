"""From pytorch-metric-learning: the same losses under our names, and how to import trained prototypes.

- Margins are radians here and degrees there (ArcFace), cosines in both (CosFace).
- Prototypes are `weight`, (classes, dimensions), here and `W`, (dimensions, classes), there.
- A head is `PrototypeHead(dimensions, classes, objective)`, a loss there `ArcFaceLoss(classes, dimensions)`.
- Where theta + m exceeds pi, ArcFace continues as a straight line in both: `beyond_pi="linear"`.

Run: pip install pytorch-metric-learning && python examples/from_pytorch_metric_learning.py
"""

import math
from typing import Any

import torch
from pytorch_metric_learning import losses as theirs

from tammes import PrototypeHead
from tammes.losses import ArcFace, CosFace, NormFace, Objective

CLASSES, DIMENSIONS = 1000, 128
SIZE = (CLASSES, DIMENSIONS)

PAIRS: list[tuple[Any, Objective]] = [
    (theirs.ArcFaceLoss(*SIZE, margin=28.6, scale=24), ArcFace(scale=24, margin=math.radians(28.6))),
    (theirs.CosFaceLoss(*SIZE, margin=0.35, scale=24), CosFace(scale=24, margin=0.35)),
    (theirs.NormalizedSoftmaxLoss(*SIZE, temperature=1 / 16), NormFace(scale=16)),
]


def head_of(loss: Any, objective: Objective) -> PrototypeHead:
    """Make a head with the prototypes of a trained loss of pytorch-metric-learning."""
    head = PrototypeHead(DIMENSIONS, CLASSES, objective)
    with torch.no_grad():
        head.weight.copy_(loss.W.T)
    return head


def main() -> float:
    """Print the largest difference between their losses and ours, in values and gradients."""
    torch.manual_seed(0)
    labels = torch.randint(CLASSES, (57,))
    worst = 0.0
    for loss, objective in PAIRS:
        embeddings = torch.randn(57, DIMENSIONS)
        embeddings[:9] = 0.1 * embeddings[:9] - 20 * loss.W.T[labels[:9]].detach()  # far on the wrong side
        embeddings.requires_grad_()
        values, gradients = [], []
        for value in (loss(embeddings, labels), head_of(loss, objective)(embeddings, labels)):
            values.append(value.item())
            gradients.append(torch.autograd.grad(value, embeddings)[0])
        apart = max(abs(values[0] - values[1]), (gradients[0] - gradients[1]).abs().max().item())
        print(f"{type(loss).__name__:24} {values[0]:.5f}   {objective!s:32} {values[1]:.5f}")
        worst = max(worst, apart)
    return worst


if __name__ == "__main__":
    main()

"""Mistakes that a type checker must find, one on each line that says `wrong`."""

from torch import Tensor

from tammes import CosFace, LSoftmax, NormFace, PrototypeHead


def mistakes(z: Tensor, y: Tensor) -> None:
    CosFace(s=64)  # wrong: no margin
    CosFace(s=64, scale=64, m=0.35)  # wrong: the scale twice
    CosFace(scale="64", margin=0.35)  # wrong: text for a number
    LSoftmax(s=64)  # wrong: it has no scale
    head = PrototypeHead(512, 1000, NormFace(s=5))
    head(z, y, reduction="sum")  # wrong: no such reduction
    head(z, y).accuracy()  # wrong: a tensor has none
    head.objective = 5  # wrong: neither an objective nor text
    NormFace(s=5)(z, z, y, weight=None)  # wrong: called class_weight

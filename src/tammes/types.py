"""Axis names, spelled once: n samples, k classes, d dimensions."""

from jaxtyping import Float, Int
from torch import Tensor

Embeddings = Float[Tensor, "n d"]
Prototypes = Float[Tensor, "k d"]
Similarities = Float[Tensor, "n k"]
Labels = Int[Tensor, " n"]
PerSample = Float[Tensor, " n"]
PerClass = Float[Tensor, " k"]
Scalar = Float[Tensor, ""]

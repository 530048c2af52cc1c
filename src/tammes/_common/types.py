"""Tensor types with named axes: n samples, k classes, d dimensions."""

import numpy as np
from jaxtyping import Float, Int, UInt8
from torch import Tensor

Embeddings = Float[Tensor, "n d"]
Prototypes = Float[Tensor, "k d"]
ClassPrototypes = Float[Tensor, "k *c d"]  # one prototype per class, or c of them
Similarities = Float[Tensor, "n k"]
Labels = Int[Tensor, " n"]
PerSample = Float[Tensor, " n"]
PerClass = Float[Tensor, " k"]
Scalar = Float[Tensor, ""]
Picture = UInt8[np.ndarray, "h w c"]

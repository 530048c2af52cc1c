"""Optima of objectives: lower bounds on losses (with corrected signs), and optima for free features.

- `free_features`: the prototypes and features that minimize an objective, without a network;
- `normface_bound`, `cosface_bound`, `arcface_bound`, `gm_softmax_bound`, `lm_softmax_bound`: lower bounds;
- `margin_bound`: the generalization bound of the paper's eq. 2.7.
"""

from tammes._common.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)

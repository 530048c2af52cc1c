"""Margins, simplices, bounds and packings on the unit sphere.

- Measure: `class_margin`, `sample_margins`, `gamma_min`, `gamma_per_class`, `nearest_prototypes`;
- maxima: `largest_class_margin`, `gamma_min_ceiling`, `sample_margin_ceiling`;
- construct: `pack`, `softmax_code`, `simplex`, `orthoplex`, `polygon`.
"""

from tammes._common.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)

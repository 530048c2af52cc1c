"""Metrics of trained models, computed from arrays and tensors.

- Classification: `summarize` (accuracy and margins), `accuracy_by_count`, `expected_calibration_error`;
- retrieval: `retrieval_metrics` (mAP, CMC, mINP), `k_reciprocal_distances` for re-ranking;
- verification: `verify`, `roc`, `auc`, `at_far`, `equal_error_rate`; `template_features` for IJB-B and IJB-C;
- geometry of features and prototypes: `neural_collapse` (NC1 to NC4), `softmax_code_gap`.
"""

from tammes._common.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)

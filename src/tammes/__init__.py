"""Learning towards the largest margins: margin losses, prototype heads and sphere packings for PyTorch.

`dir(tammes)` lists the most used names, which are imported on first use; `help(tammes.CosFace)` explains one.
To train: `PrototypeHead(512, 1000, "ArcFace(s=64, m=0.5) + 0.5*R_sm")` replaces the last layer and the loss.
To measure: `class_margin`, `sample_margins`, `neural_collapse`; their maxima: `largest_class_margin`, `pack`.

The packages have all names:

- `tammes.losses`: losses and regularizers, their text form, and how to write your own;
- `tammes.heads`: prototype heads, sharded and sampled; row-wise optimizers, `save_head` and `load_head`;
- `tammes.geometry`: class and sample margins, simplices, bounds, packings;
- `tammes.metrics`: classification, retrieval (mAP, CMC), verification, calibration, neural collapse;
- `tammes.theory`: bounds on losses, and optima with free features (`free_features`);
- `tammes.lab`: training, reports and the command line (`pip install "tammes[lab]"`).
"""

from tammes._common.lazy import exports

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = exports(__name__, __file__)

"""Learning towards the largest margins: margin losses, prototype heads and sphere packings for PyTorch.

`dir(tammes)` lists the most used names, which are imported on first use; `help(tammes.CosFace)` explains one.
The packages have all of them:

- `tammes.losses`: losses and regularizers, their text form, and how to write your own;
- `tammes.heads`: prototype heads, sharded and sampled; row-wise optimizers, checkpoints, import and export;
- `tammes.geometry`: class and sample margins, simplices, bounds, packings;
- `tammes.metrics`: classification, retrieval (mAP, CMC), verification, calibration, neural collapse;
- `tammes.theory`: bounds on losses, and optima with free features;
- `tammes.lab`: training, reports and the command line (`pip install "tammes[lab]"`).
"""

from tammes._common.lazy import exports

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = exports(__name__, __file__)

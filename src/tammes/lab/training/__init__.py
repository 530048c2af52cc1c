"""Training: one config in, one folder out with the log, checkpoints and result of the run.

>>> from tammes.lab.training import Config, train
>>> config = Config(data="digits", model="cnn4", objective="NormFace(s=10) + 0.5*R_sm", epochs=10)
>>> result = train(config, "runs/digits")  # doctest: +SKIP
>>> result["metrics"]["accuracy"]  # doctest: +SKIP
0.99
"""

from tammes._common.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)

"""Training: one config to one folder with the log, the checkpoints and the result of a run.

>>> from tammes.training import Config, train
>>> config = Config(data="digits", model="cnn4", objective="NormFace(s=10) + 0.5*R_sm", epochs=10)
>>> result = train(config, "runs/digits")  # doctest: +SKIP
>>> result["metrics"]["accuracy"]  # doctest: +SKIP
0.99
"""

from tammes.training.classifier import Classifier, DataFacts
from tammes.training.config import Config, read_config
from tammes.training.evaluation import Evaluation, evaluate
from tammes.training.folder import RunFolder
from tammes.training.loop import train
from tammes.training.watch import NonFiniteLossError, RunInterruptedError

__all__ = [
    "Classifier",
    "Config",
    "DataFacts",
    "Evaluation",
    "NonFiniteLossError",
    "RunFolder",
    "RunInterruptedError",
    "evaluate",
    "read_config",
    "train",
]

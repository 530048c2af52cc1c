"""Where a run starts that goes on with another one's network."""

from pathlib import Path

from torch import Tensor

from tammes.geometry.sphere import safe_norm
from tammes.training.classifier import DataFacts
from tammes.training.config import Config
from tammes.training.folder import RunFolder


def starting_weights(config: Config, facts: DataFacts) -> dict[str, Tensor]:
    """The weights of the run in `config.start` that a run of `config` on such data takes over.

    The network always, the prototypes unless they are to be fresh; each divided by its length to the power
    tau. The start must be finished and have the same backbone.
    """
    assert config.start is not None
    folder = RunFolder(Path(config.start))
    _check_same_backbone(folder, config, facts)
    if folder.result is None:
        raise ValueError(f"{folder.path} has no result yet. Finish it: {folder.how_to_resume()}")
    weights = folder.weights()
    taken = {name: value for name, value in weights.items() if name.startswith("backbone.")}
    if config.fresh_prototypes:
        return taken
    if folder.facts.classes != facts.classes:
        raise ValueError(
            f"{folder.path} was trained on other classes than {facts.name} has. Use fresh_prototypes."
        )
    prototypes = weights["head.weight"]
    return taken | {"head.weight": prototypes / safe_norm(prototypes) ** config.tau}


def _check_same_backbone(folder: RunFolder, config: Config, facts: DataFacts) -> None:
    theirs, shape = folder.config, folder.facts.shape
    if (theirs.model, theirs.embedding) != (config.model, config.embedding):
        raise ValueError(
            f"{folder.path} has the backbone {_backbone(theirs)}, this run {_backbone(config)}. "
            "A run starts from one with the same."
        )
    if shape[0] != facts.shape[0]:
        raise ValueError(f"{folder.path} has images of {shape[0]} channels, this run of {facts.shape[0]}.")


def _backbone(config: Config) -> str:
    return config.model if config.embedding is None else f"{config.model} with embedding={config.embedding}"

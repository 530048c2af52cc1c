"""Table 3 and appendix Table 8: person re-identification, each loss with a triplet loss.

Paper: LM-Softmax leads on Market-1501 (84.7 mAP at s = 20 against 82.8 of CE) and hardly depends on s, where
ArcFace and CosFace lose 13 points at s = 10 and NormFace 6 at s = 64. It states no m: ours are the losses'
own usual ones, 0.5 for ArcFace and 0.35 for CosFace. CE has label smoothing 0.1, as the baseline has. `paper`
is the bag-of-tricks baseline with ImageNet's weights for the paper's 60 epochs; `laptop` a small ResNet from
scratch.
Cost: `laptop` about ten minutes a row on two cores; `paper` needs a GPU, and weights that timm fetches.
Run: tammes reproduce table3 --dataset market1501
"""

import json
from collections.abc import Iterator
from importlib import resources
from typing import NamedTuple

from tammes.recipes.presets import Settings, preset
from tammes.recipes.table import Row
from tammes.training.config import Config

SCALES = (10, 20, 32, 64)
LOSSES = {
    "ArcFace": "ArcFace(s={s}, m={m})",
    "CosFace": "CosFace(s={s}, m={m})",
    "NormFace": "NormFace(s={s})",
    "LM-Softmax": "LMSoftmax(s={s})",
}
MARGINS = {"ArcFace": 0.5, "CosFace": 0.35}
NAMES = {"market1501": "Market-1501", "dukemtmc-reid": "DukeMTMC-reID"}


class Variant(NamedTuple):
    """A row apart from data set and preset."""

    name: str
    label: str
    block: str
    objective: str


def variants() -> Iterator[Variant]:
    """The rows of appendix Table 8 in its order."""
    yield Variant("ce", "CE", "Cross-entropy", "CE(label_smoothing=0.1)")
    for loss, text in LOSSES.items():
        for s in SCALES:
            name = f"{loss.lower().replace('-', '')}-s{s}"
            margin = f", m = {MARGINS[loss]}" if loss in MARGINS else ""
            yield Variant(name, f"{loss} (s={s})", loss + margin, text.format(s=s, m=MARGINS.get(loss)))


def rows(dataset: str, scale: str, *, data_root: str = "data") -> list[Row]:
    """Every row of the table of one data set.

    >>> every = rows("market1501", "laptop")
    >>> len(every), every[13].key, every[13].config.objective, every[13].paper["mAP"]
    (17, 'market1501-laptop-lmsoftmax-s10', 'LMSoftmax(s=10)', 83.3)
    """
    settings, printed = preset(f"reid-{scale}"), paper(dataset)
    found = []
    for name, label, block, objective in variants():
        own: Settings = {"data": dataset, "data_root": data_root, "objective": objective}
        key = prefix(dataset, scale) + name
        found.append(Row(key, label, Config(**(settings | own)), printed.get(name, {}), block))
    return found


def prefix(dataset: str, scale: str) -> str:
    """What the keys of a data set's rows begin with."""
    return f"{dataset}-{scale}-"


def paper(dataset: str) -> dict[str, dict[str, float]]:
    """The printed numbers of each row, in per cent."""
    text = resources.files("tammes.recipes").joinpath("paper/table3.json").read_text(encoding="utf-8")
    stored = json.loads(text)
    columns = stored["columns"]
    return {name: dict(zip(columns, sets[dataset], strict=True)) for name, sets in stored["rows"].items()}


def notes(scale: str) -> list[str]:
    """What has to be said below the table."""
    if scale == "paper":
        return ["Ours: the paper's network and 60 epochs. The paper states no m; ours are 0.5 and 0.35."]
    return [
        "Ours: a small ResNet from scratch, 30 epochs, images of 128 x 64; the paper's: ResNet-50 from "
        "ImageNet's weights, 60 epochs, 256 x 128. Unless the data are the official ones, the test set "
        "differs too. Compare ours with ours."
    ]

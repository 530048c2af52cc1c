"""Table 4 and appendix Table 9: face verification with and without R_sm and R_w.

Paper: IResNet-34 on MS1MV3, batches of 512, ArcFace 64/0.5, CosFace 64/0.35, LM-Softmax 32; it names neither
mu nor lambda, epochs nor learning rate. `paper` takes mu = 0.5 and 100 lambda = 100, and for the rest what
insightface publishes for this set, with its polynomial schedule. `laptop` learns LFW's View 1, 1,184 people,
at 64 x 64 pixels: far too few people for a system to be used, enough to compare objectives.
Run: tammes reproduce table4 --data-root data
"""

import json
from importlib import resources
from typing import Any

from tammes.recipes.presets import PRESETS
from tammes.recipes.table import Row
from tammes.training.config import Config

OBJECTIVES = {
    "paper": {
        "arcface": "ArcFace(s=64, m=0.5)",
        "cosface": "CosFace(s=64, m=0.35)",
        "lmsoftmax": "LMSoftmax(s=32)",
        "normface": "NormFace(s=64)",
    },
    "laptop": {
        "arcface": "ArcFace(s=32, m=0.3)",
        "cosface": "CosFace(s=32, m=0.2)",
        "lmsoftmax": "LMSoftmax(s=32)",
        "normface": "NormFace(s=32)",
    },
}
LABELS = {"arcface": "ArcFace", "cosface": "CosFace", "lmsoftmax": "LM-Softmax", "normface": "NormFace"}
TERMS = {"+rsm": (" + 0.5*R_sm", " + 0.5 R_sm"), "+rw": (" + 100*R_w", " + 100 R_w")}
ENDS = {
    "arcface": ("", "+rsm", "+rw"),
    "cosface": ("", "+rsm", "+rw"),
    "lmsoftmax": ("", "+rw"),
    "normface": ("",),
}
"""The rows of the table; of NormFace the paper gives s and prints no row."""

DATA = {"paper": "ms1m-retinaface-t1", "laptop": "lfw-view1"}
NOTES = {
    "paper": ["The paper names neither mu nor lambda; ours are 0.5 and 100 lambda = 100."],
    "laptop": [
        "Ours: LFW View 1, trained on its 1,184 people with two images or more, at 64 x 64. That is far "
        "below published systems, which learn millions of images; it compares objectives and nothing else.",
        "The paper's columns are of other networks and data, and are left out here.",
    ],
}


def rows(preset: str, *, data_root: str = "data") -> list[Row]:
    """Every row of the table, in its order.

    >>> every = rows("paper")
    >>> len(every), every[4].key, every[4].paper["lfw_accuracy"]
    (9, 'paper-cosface+rsm', 99.817)
    """
    settings: dict[str, Any] = PRESETS["face" if preset == "paper" else "face-laptop"]
    data = f"{data_root}/{DATA[preset]}" if preset == "paper" else DATA[preset]
    printed = paper() if preset == "paper" else {}
    found = []
    for loss, text in OBJECTIVES[preset].items():
        for end in ENDS[loss]:
            term, said = TERMS.get(end, ("", ""))
            own: dict[str, Any] = settings | {"objective": text + term, "data": data, "data_root": data_root}
            found.append(
                Row(
                    key=f"{preset}-{loss}{end}",
                    label=LABELS[loss] + said,
                    config=Config(**own),
                    paper=printed.get(loss + end, {}),
                    block=text,
                    versus=f"{preset}-{loss}" if end else "",
                )
            )
    return found


def paper() -> dict[str, dict[str, float]]:
    """The printed numbers of each row, in per cent."""
    text = resources.files("tammes.recipes").joinpath("paper/table4.json").read_text(encoding="utf-8")
    stored = json.loads(text)
    return {name: dict(zip(stored["columns"], row, strict=True)) for name, row in stored["rows"].items()}

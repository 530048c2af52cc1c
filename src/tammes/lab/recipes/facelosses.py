"""Comparison of face losses: LFW View 1 at laptop scale.

Not in the paper, whose face table is table4.py. Same data, network and settings as the laptop preset there.
s and m are ArcFace's there; the other parameters are the defaults of each loss. Sub-centers: three prototypes
per person, as in the paper that introduced them (Deng et al. 2020), all kept.
Run: tammes reproduce facelosses --data-root data --seeds 2
"""

from tammes.lab.recipes.presets import preset_settings
from tammes.lab.recipes.table import Table, Variant, build_rows
from tammes.lab.recipes.table4 import COLUMNS

ROWS = {
    "arcface": ("ArcFace", {"objective": "ArcFace(s=32, m=0.3)"}),
    "adaface": ("AdaFace", {"objective": "AdaFace(s=32, m=0.3)"}),
    "magface": ("MagFace", {"objective": "MagFace(s=32, low_margin=0.25, high_margin=0.45)"}),
    "curricularface": ("CurricularFace", {"objective": "CurricularFace(s=32, m=0.3)"}),
    "subcenters": ("ArcFace, 3 sub-centers", {"objective": "ArcFace(s=32, m=0.3)", "centers": 3}),
}


def table(
    *, data_root: str = "data", out: str = "results/facelosses", runs: str = "runs/facelosses"
) -> Table:
    """Face losses on LFW View 1, with the laptop settings of Table 4.

    Trains on the people of LFW's View 1 and verifies its test pairs: accuracy over ten folds, area under the
    ROC curve, TAR at FAR 1 %, and the smallest angle between prototypes of two people. Row names: arcface,
    adaface, magface, curricularface, subcenters.

    Examples:
        tammes reproduce facelosses --data-root data --seeds 2
        tammes reproduce facelosses --rows adaface
    """
    settings = preset_settings("face-laptop") | {"data_root": data_root}
    rows = [
        Variant(name, label, "", changes, "" if name == "arcface" else "arcface")
        for name, (label, changes) in ROWS.items()
    ]
    return Table(
        name="facelosses",
        title="Face losses on LFW View 1",
        columns=COLUMNS["laptop"],
        rows=build_rows(rows, settings),
        notes=[
            "Trained on the 1,184 people of LFW View 1: far below published systems. Differences: to ArcFace."
        ],
        out=out,
        runs=runs,
    )

"""Table 4 and appendix Table 9: face verification with and without R_sm and R_w.

Paper: IResNet-34 on MS1MV3, batch size 512, ArcFace 64/0.5, CosFace 64/0.35, LM-Softmax 32; it states neither
mu nor lambda, neither epochs nor learning rate. The `paper` preset takes mu = 0.5 and 100 lambda = 100, and
for the rest what insightface publishes for this set, with its polynomial schedule. `laptop` trains on LFW's
View 1, 1,184 people at 64 x 64 pixels: far too few for a usable system, enough to compare objectives.
Run: tammes reproduce table4 --data-root data
"""

from collections.abc import Iterator

from tammes.lab.recipes.presets import preset_settings
from tammes.lab.recipes.table import Preset, Table, Variant, build_rows, printed_table
from tammes.lab.recipes.table1 import PROJECTION
from tammes.lab.report.tables import Column

LABELS = {"arcface": "ArcFace", "cosface": "CosFace", "lmsoftmax": "LM-Softmax", "normface": "NormFace"}
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
TERMS = {"": "", "+rsm": " + 0.5*R_sm", "+rw": " + 100*R_w"}
"""Suffix of a key to suffix of its objective."""

SUFFIXES = {
    "arcface": ("", "+rsm", "+rw"),
    "cosface": ("", "+rsm", "+rw"),
    "lmsoftmax": ("", "+rw"),
    "normface": ("",),
}
"""The rows of the table. For NormFace the paper gives s but prints no row."""

PRESETS = {"paper": "face", "laptop": "face-laptop"}
TRAINING_SET = {"paper": "MS1MV3", "laptop": "LFW View 1"}
COLUMNS = {
    "laptop": (
        Column("accuracy %", "lfw_view1_accuracy", 2, 100),
        Column("AUC %", "lfw_view1_auc", 2, 100),
        Column("TAR at FAR 1e-2 %", "lfw_view1_tar_at_1e-02", 2, 100),
        Column("m_cls deg", "class_margin_deg"),
    ),
    "paper": (
        Column("IJB-C AUC", "ijbc_auc", 4, 100),
        Column("AgeDB-30", "agedb_30_accuracy", 3, 100),
        Column("CFP-FP", "cfp_fp_accuracy", 3, 100),
        Column("LFW", "lfw_accuracy", 3, 100),
        Column("IJB-C 1e-5", "ijbc_tar_at_1e-05", 2, 100),
        Column("IJB-C 1e-4", "ijbc_tar_at_1e-04", 2, 100),
    ),
}
NOTES = {
    "paper": ["The paper states neither mu nor lambda; ours are 0.5 and 100 lambda = 100."],
    "laptop": [
        "Ours: trained on the 1,184 people of LFW View 1 with two or more images, at 64 x 64. This is far "
        "below published systems, which train on millions of images; compare only the objectives.",
        "The paper's columns are for other networks and data, and are left out.",
        PROJECTION,
    ],
}


def table(
    *,
    preset: Preset = "laptop",
    data_root: str = "data",
    out: str = "results/faces",
    runs: str = "runs/faces",
) -> Table:
    """Table 4 and appendix Table 9: face verification with and without R_sm and R_w.

    laptop trains on the people of LFW's View 1 and verifies its test pairs: accuracy over ten folds, area
    under the ROC curve, TAR at FAR 1 %, and the smallest angle between two prototypes. paper trains on MS1MV3
    (insightface's folder ms1m-retinaface-t1 in the data root, with lfw.bin, cfp_fp.bin, agedb_30.bin and
    IJBC in it) and needs GPUs. Row names: arcface, arcface+rsm, arcface+rw, likewise cosface, then
    lmsoftmax, lmsoftmax+rw, normface.

    Examples:
        tammes reproduce table4 --data-root data --seeds 2
        tammes reproduce table4 --rows "arcface*"
        tammes reproduce table4 --preset paper --show
    """
    settings = preset_settings(PRESETS[preset]) | {"data_root": data_root}
    if preset == "paper":  # a folder, not a named data set
        settings["data"] = f"{data_root}/{settings['data']}"
    prefix = f"{preset}-"
    return Table(
        name=f"table4 {preset}",
        title=f"Table 4 and appendix Table 9, {TRAINING_SET[preset]}, {preset} preset",
        columns=COLUMNS[preset],
        rows=build_rows(
            _variants(preset), settings, prefix=prefix, paper=printed() if preset == "paper" else None
        ),
        notes=NOTES[preset],
        prefix=prefix,
        out=out,
        runs=runs,
    )


def _variants(preset: str) -> Iterator[Variant]:
    for loss, text in OBJECTIVES[preset].items():
        for end in SUFFIXES[loss]:
            label = LABELS[loss] + TERMS[end].replace("*", " ")
            yield Variant(loss + end, label, text, {"objective": text + TERMS[end]}, loss if end else "")


def printed() -> dict[str, dict[str, float]]:
    """The paper's numbers by row, in per cent."""
    stored = printed_table("table4")
    return {name: dict(zip(stored["columns"], row, strict=True)) for name, row in stored["rows"].items()}

"""Comparison of losses for imbalanced classes: CIFAR-10, long-tailed with ratio 100.

Not in the paper, which compares margins and R_w (table2.py). Same data, network and settings as the laptop
preset of Table 2. Predictions use the plain logits.
Run: tammes reproduce longtail --data-root data --seeds 2
"""

from tammes.lab.recipes.table import Table, Variant, build_rows
from tammes.lab.recipes.table2 import COLUMNS, run_settings

OBJECTIVES = {
    "ce": ("CE", "CE"),
    "balanced": ("Balanced Softmax", "BalancedSoftmax"),
    "adjusted": ("Logit-adjusted", "LogitAdjusted(tau=1.5)"),
    "vs": ("VS", "VS(gamma=0.15, tau=1.25)"),
    "ldam": ("LDAM", "LDAM(s=5)"),
    "lmsoftmax+rw": ("LM-Softmax + R_w", "LMSoftmax(s=5) + 1000*R_w"),
}


def table(*, data_root: str = "data", out: str = "results/longtail", runs: str = "runs/longtail") -> Table:
    """Losses for imbalanced classes on CIFAR-10, long-tailed 100, with the laptop settings of Table 2.

    acc is the test accuracy, m_cls the smallest angle between two prototypes. Row names: ce, balanced,
    adjusted, vs, ldam, lmsoftmax+rw.

    Examples:
        tammes reproduce longtail --data-root data --seeds 2
        tammes reproduce longtail --rows balanced vs
    """
    settings = run_settings("cifar10", "long_tailed:100", "laptop") | {"data_root": data_root}
    rows = [
        Variant(name, label, "", {"objective": text}, "" if name == "ce" else "ce")
        for name, (label, text) in OBJECTIVES.items()
    ]
    return Table(
        name="longtail",
        title="Losses for imbalanced classes on CIFAR-10, long_tailed:100",
        columns=COLUMNS,
        rows=build_rows(rows, settings),
        notes=[f"Ours: {settings['model']}, {settings['epochs']} epochs; differences are to CE."],
        out=out,
        runs=runs,
    )

"""The tables of results/bench_head.json in README.md and docs/scaling.md."""

from pathlib import Path
from typing import Any

from tammes.lab.report.tables import fill

LARGE = ("n=256, d=512, k=100000", "n=2048, d=512, k=50000")
MILLION = "n=512, d=512, k=1000000"


def fill_pages(pages: list[Path], found: dict[str, Any]) -> None:
    """Fill every page that has markers for a table of this benchmark."""
    tables = {"head": many_classes(found), "head few classes": few_classes(found)}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        names = [name for name in tables if f"<!-- {name} -->\n" in text]
        if not names:
            raise ValueError(f"{page} has no markers of a table. Add <!-- head --> and <!-- end head -->.")
        for name in names:
            fill(page, name, tables[name])


def many_classes(found: dict[str, Any]) -> str:
    """Time relative to the three products, memory, and a step with a million classes."""
    times, memory = [found["large"][size] for size in LARGE], found["memory"][LARGE[1]]
    versions, arcface = found["stamp"]["versions"], "ArcFace(s=64, m=0.5)"
    torch, peer = "torch linear_cross_entropy", "pytorch-metric-learning ArcFace"
    rows = {
        "ArcFace, lean": (f"{arcface}, lean", "ArcFace, lean"),
        "ArcFace, default": (f"{arcface}, default", "ArcFace, default"),
        f"torch {versions['torch']}, `linear_cross_entropy` (no margins)": (f"{torch}, whole",) * 2,
        "the same, chunked": (f"{torch}, chunked",) * 2,
        f"pytorch-metric-learning {versions['pytorch-metric-learning']}, ArcFace": (peer, peer),
    }
    lines = [
        "| d = 512, float32 | n = 256, k = 100,000 | n = 2048, k = 50,000 | memory of the latter |",
        "|---|---|---|---|",
    ]
    for label, (timed, measured) in rows.items():
        ratios = " | ".join(f"{time[timed]:.2f}" for time in times)
        lines.append(f"| {label} | {ratios} | {memory[measured]:,.0f} MB |")
    ours = found["million"][f"ArcFace, lean, {MILLION}"]
    theirs = found["million"][f"{peer}, {MILLION}"]
    lines += [
        "",
        f"A full-softmax step over a million classes (n = 512) peaks at {ours['peak GiB']:.1f} GiB and takes "
        f"{ours['seconds'] / theirs['seconds']:.2f} times as long as in",
        f"pytorch-metric-learning, which peaks at {theirs['peak GiB']:.1f} GiB.",
    ]
    return "\n".join(lines) + "\n"


def few_classes(found: dict[str, Any]) -> str:
    """Time relative to the formula written by hand, and the effect of `fast_products`."""
    peer = f"pytorch-metric-learning {found['stamp']['versions']['pytorch-metric-learning']}"
    lines = [
        f"| time relative to the formula by hand | tammes | tammes, dense | {peer} |",
        "|---|---|---|---|",
    ]
    for size, row in found["small"].items():
        values = [f"{row[name]:.2f}" for name in ("tammes", "tammes, dense", "pytorch-metric-learning")]
        lines.append(f"| {size} | {' | '.join(values)} |")
    for size, row in found.get("half", {}).items():
        errors = row["relative errors"]
        lines += [
            "",
            f"`fast_products=True`, bfloat16 products with float32 sums ({size}): {row['fast_products']:.2f} "
            "times as long as float32.",
            "Relative errors against float64:",
            "",
            "| | loss | gradient of embeddings | gradient of prototypes |",
            "|---|---|---|---|",
        ]
        for name, error in errors.items():
            values = " | ".join(f"{error[of]:.1e}" for of in ("loss", "of embeddings", "of prototypes"))
            lines.append(f"| {name} | {values} |")
    return "\n".join(lines) + "\n"

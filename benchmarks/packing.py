"""Packings: angles and times on one thread, and large packings compared with Adam.

Run: python -m benchmarks.packing         (all, into results/packing.json)
     python -m benchmarks.packing huge    (one part: d=3, codes, table, ...: --help)
     python -m benchmarks.packing --table docs/packing.md    (no search: the page from the record)

The table, d = 4 to 8 and k up to 64, takes about 40 minutes of CPU. Finished rows are kept: rerun to
continue. Each row records the load average; if it is above 2, compare CPU seconds.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import peak_bytes
from tammes.geometry.packing import pack
from tammes.geometry.sphere import normalize
from tammes.lab.record_stamp import commit, stamp, write_record
from tammes.lab.report.tables import fill

RESULTS = Path("results/packing.json")


def small(d: int, largest: int = 24) -> dict[str, Any]:
    """k = 2 to `largest` in d dimensions, on one thread."""
    rows = []
    for k in range(2, largest + 1):
        packing = pack(k, d)
        rows.append(
            {
                "k": k,
                "angle_deg": math.degrees(packing.angle),
                "bound_deg": math.degrees(packing.bound),
                "bound": packing.bound_name,
                "optimal": packing.optimal,
                "contacts": len(packing.contacts),
                "rattlers": len(packing.rattlers),
                "seconds": round(packing.seconds, 3),
            }
        )
    return {"seconds": round(sum(row["seconds"] for row in rows), 2), "rows": rows}


CODES = {
    "D4": (24, 4),
    "600-cell": (120, 4),
    "D5": (40, 5),
    "Schlaefli": (27, 6),
    "E6": (72, 6),
    "56 in 7 dimensions": (56, 7),
    "E7": (126, 7),
    "E8": (240, 8),
    "McLaughlin 112": (112, 21),
    "McLaughlin 162": (162, 21),
    "Higman-Sims": (100, 22),
    "McLaughlin": (275, 22),
}


def cell(
    k: int,
    d: int,
    *,
    restarts: int | None = None,
    time_limit: float | None = None,
    part_of: int | None = None,
) -> dict[str, Any]:
    """One size, on one thread; with `part_of`, from a packing of that many points without the last ones."""
    torch.set_num_threads(1)
    before = time.process_time()
    search = partial(pack, restarts=restarts, time_limit=time_limit)
    start = None if part_of is None else search(part_of, d).points[:k]
    packing = search(k, d, start=start)
    return {
        "k": k,
        "d": d,
        "restarts": restarts,
        "part_of": part_of,
        "angle_deg": math.degrees(packing.angle),
        "cosine": math.cos(packing.angle),
        "bound_deg": math.degrees(packing.bound),
        "gap_deg": math.degrees(packing.bound - packing.angle),
        "bound": packing.bound_name,
        "optimal": packing.optimal,
        "rattlers": len(packing.rattlers),
        "seconds": round(packing.seconds, 2),
        "cpu_seconds": round(time.process_time() - before, 2),
        "load": round(os.getloadavg()[0], 1),
        "commit": commit(),
    }


def codes() -> dict[str, Any]:
    """Named codes, with default arguments."""
    return {"rows": [{"code": name} | cell(*size, time_limit=60.0) for name, size in CODES.items()]}


FULL, FEW = 45, 12
"""Up to the first size, rows of the table have the default number of starts; beyond it, this many."""
HIGHER = 1e-6
"""Degrees by which an angle is larger than rounding explains."""


def table(processes: int, dimensions: range = range(4, 9), largest: int = 64) -> dict[str, Any]:
    """Every size up to `largest`; rows that are already in the results file are kept."""
    rows = json.loads(RESULTS.read_text()).get("table", {}).get("rows", []) if RESULTS.exists() else []
    done = {(row["k"], row["d"]) for row in rows}
    missing = [(k, d) for k in range(2, largest + 1) for d in dimensions if (k, d) not in done]
    with ProcessPoolExecutor(processes) as pool:
        jobs = [pool.submit(cell, k, d, restarts=None if k <= FULL else FEW) for k, d in missing]
        for future in as_completed(jobs):
            rows = sorted([*rows, future.result()], key=lambda row: (row["d"], row["k"]))
            found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            write_record(RESULTS, found | {"table": {"rows": rows, "how": HOW | stamp(seconds=0.0)}})
    rows = mended(rows)
    draw(rows)
    return {"rows": rows}


def mended(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, those with a smaller angle than a larger code searched again from that code's points."""
    best: dict[int, dict[str, Any]] = {}
    found = []
    for row in sorted(rows, key=lambda row: (row["d"], -row["k"])):
        k, d = row["k"], row["d"]
        larger = best.get(d, row)
        if larger["angle_deg"] > row["angle_deg"] + HIGHER:
            origin = larger.get("part_of") or larger["k"]
            again = cell(k, d, restarts=larger.get("restarts"), part_of=origin)
            row = max(row, again, key=lambda row: row["angle_deg"])
        best[d] = max(larger, row, key=lambda row: row["angle_deg"])
        found.append(row)
    return sorted(found, key=lambda row: (row["d"], row["k"]))


def draw(rows: list[dict[str, Any]]) -> None:
    """Plot angles, bounds and the gap between them against k."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (angles, gaps) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for d in sorted({row["d"] for row in rows}):
        own = [row for row in rows if row["d"] == d]
        k = [row["k"] for row in own]
        (line,) = angles.plot(k, [row["angle_deg"] for row in own], label=f"d = {d}")
        angles.plot(k, [row["bound_deg"] for row in own], ":", color=line.get_color())
        gaps.plot(k, [row["gap_deg"] for row in own], color=line.get_color())
    angles.set(xlabel="k", ylabel="degrees", title="Smallest angle found, and upper bound (dotted)")
    gaps.set(xlabel="k", ylabel="degrees", title="Gap to the bound")
    angles.legend()
    figure.savefig(RESULTS.with_suffix(".png"), dpi=120)
    pyplot.close(figure)


def page_table(rows: list[dict[str, Any]]) -> str:
    """The angles in degrees with the gap to the bound, one line for each k and one column for each d."""
    dimensions = sorted({row["d"] for row in rows})
    cells = {
        (row["k"], row["d"]): f"{row['angle_deg']:.4f} ({row['gap_deg']:.2f})"
        for row in rows
        if row["k"] > row["d"] + 1
    }
    lines = [
        f"| {' | '.join(['k', *(f'd = {d}' for d in dimensions)])} |",
        f"|{'---|' * (len(dimensions) + 1)}",
        *(
            f"| {' | '.join([str(k), *(cells.get((k, d), '') for d in dimensions)])} |"
            for k in sorted({k for k, _ in cells})
        ),
    ]
    return "\n".join(lines) + "\n"


def adam_on_largest_cosine(k: int, d: int, seconds: float, lr: float = 0.01) -> float:
    """The common approach: Adam on the mean of the largest cosine of each point. Return the best angle."""
    torch.manual_seed(0)
    weight = normalize(torch.randn(k, d)).requires_grad_()
    optimizer = torch.optim.Adam([weight], lr=lr)
    end, best = time.perf_counter() + seconds, 0.0
    while time.perf_counter() < end:
        unit = normalize(weight)
        cosines = unit @ unit.T - 2 * torch.eye(k)
        loss = cosines.amax(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        best = max(best, math.acos(min(1.0, float(cosines.detach().max()))))
    return math.degrees(best)


def side_by_side(k: int, d: int, time_limit: float) -> dict[str, Any]:
    """`pack`, and Adam with three times as much time."""
    packing = pack(k, d, time_limit=time_limit)
    usual = adam_on_largest_cosine(k, d, 3 * packing.seconds)
    return {
        "k": k,
        "d": d,
        "tammes_deg": math.degrees(packing.angle),
        "seconds": round(packing.seconds, 2),
        "adam_deg": usual,
        "adam_seconds": round(3 * packing.seconds, 2),
        "bound_deg": math.degrees(packing.bound),
    }


def huge(k: int, d: int, time_limit: float) -> dict[str, Any]:
    """Smallest angle over time in a long search, and its peak memory; a k x k matrix would take 40 GB."""
    trace: list[dict[str, float]] = []
    start, found = time.perf_counter(), []

    def note(angle: float, _: str) -> None:
        seconds, degrees = time.perf_counter() - start, math.degrees(angle)
        if not trace or seconds - trace[-1]["seconds"] > time_limit / 20:
            trace.append({"seconds": round(seconds, 1), "angle_deg": degrees})

    search = partial(pack, k, d, time_limit=time_limit, progress=note)
    peak = peak_bytes(lambda: found.append(search()), warm=False)
    (packing,) = found
    return {
        "k": k,
        "d": d,
        "seconds": round(packing.seconds, 1),
        "angle_deg": math.degrees(packing.angle),
        "bound_deg": math.degrees(packing.bound),
        "peak_mib": round(peak / 2**20),
        "trace": trace,
    }


HOW = {"seed": 0, "threads": 1, "time_limit": None}
"""What rows of the table share; each has its own number of restarts."""

PARTS: dict[str, tuple[int, Callable[..., dict[str, Any]]]] = {
    "d=3": (1, partial(small, 3)),
    "d=4": (1, partial(small, 4)),
    "d=5": (1, partial(small, 5)),
    "codes": (1, codes),
    "86 in 6": (1, partial(cell, 86, 6)),
    "table": (1, table),
    "against Adam": (2, partial(side_by_side, 1000, 128, 25.0)),
    "huge": (2, partial(huge, 100_000, 512, 400.0)),
}
"""Name of a part to its threads and what it measures."""


def main(arguments: list[str]) -> None:
    """Run the named parts, or all; write each to the results file, with its own stamp, when it is done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packing")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; all by default")
    parser.add_argument("--processes", type=int, default=2, help="Processes for the table, one thread each.")
    parser.add_argument("--table", type=Path, metavar="PAGE", help="Fill in the table; run nothing.")
    parser.add_argument("--figure", action="store_true", help="Draw the figure of the table; run nothing.")
    options = parser.parse_args(arguments)
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.figure:
        draw(found["table"]["rows"])
        return
    if options.table is not None:
        fill(options.table, "packing", page_table(found["table"]["rows"]))
        return
    for name in options.parts or PARTS:
        threads, measure = PARTS[name]
        torch.set_num_threads(threads)
        start = time.perf_counter()
        found[name] = measure(options.processes) if name == "table" else measure()
        how = {"threads": threads, "seed": 0} | stamp(seconds=time.perf_counter() - start)
        found[name]["how"] = how
        print(name, {key: found[name][key] for key in found[name].keys() - {"rows", "how"}}, flush=True)
        write_record(RESULTS, found)


if __name__ == "__main__":
    main(sys.argv[1:])

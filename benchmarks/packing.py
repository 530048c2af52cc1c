"""Packings: angles and times on one thread, and large ones against the usual way.

Run: python -m benchmarks.packing         (all, into results/packing.json)
     python -m benchmarks.packing huge    (one part: d=3, d=4, d=5, "against Adam", huge)
"""

import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import peak_bytes
from tammes.geometry.packing import pack
from tammes.geometry.sphere import normalize
from tammes.provenance import stamp, write_json

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


def adam_on_largest_cosine(k: int, d: int, seconds: float, lr: float = 0.01) -> float:
    """The usual way: Adam on the mean over points of their largest cosine; the best angle on the way."""
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
    """`pack` against the usual way with three times as long."""
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
    """The smallest angle known as a long search goes on, and how far memory rises; k x k would be 40 GB."""
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


PARTS: dict[str, tuple[int, Callable[[], dict[str, Any]]]] = {
    "d=3": (1, partial(small, 3)),
    "d=4": (1, partial(small, 4)),
    "d=5": (1, partial(small, 5)),
    "against Adam": (2, partial(side_by_side, 1000, 128, 25.0)),
    "huge": (2, partial(huge, 100_000, 512, 400.0)),
}
"""Name of a part to its threads and what it measures."""


def main(names: list[str]) -> None:
    """The named parts, or all, into the results file as they come, each with its own stamp."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names or PARTS:
        threads, measure = PARTS[name]
        torch.set_num_threads(threads)
        start = time.perf_counter()
        found[name] = measure()
        how = {"threads": threads, "seed": 0} | stamp(seconds=time.perf_counter() - start)
        found[name]["how"] = how
        print(name, {key: found[name][key] for key in found[name].keys() - {"rows", "how"}}, flush=True)
        write_json(RESULTS, found)


if __name__ == "__main__":
    main(sys.argv[1:])

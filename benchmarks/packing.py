"""Packings: angles and times on one thread, and large ones against the usual way.

Run: python -m benchmarks.packing         (into results/packing.json)
"""

import math
import time
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


def huge(k: int, d: int, limits: tuple[float, ...]) -> list[dict[str, Any]]:
    """The angle after ever longer searches, and how far memory rises; k x k would be 40 GB."""
    rows: list[dict[str, Any]] = []
    for limit in limits:
        found: list[Any] = []
        peak = peak_bytes(
            lambda limit=limit, found=found: found.append(pack(k, d, time_limit=limit)), warm=False
        )
        packing = found[-1]
        rows.append(
            {
                "k": k,
                "seconds": round(packing.seconds, 1),
                "angle_deg": math.degrees(packing.angle),
                "peak_mib": round(peak / 2**20),
            }
        )
    return rows


def main() -> None:
    """Every part, into the results file as it comes."""
    start = time.perf_counter()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"config": {"seed": 0, "threads": 1, "threads of the large ones": 2}}
    for d in (3, 4, 5):
        found[f"d={d}"] = small(d)
        print(f"d={d}: {found[f'd={d}']['seconds']} s", flush=True)
    torch.set_num_threads(2)
    found["against Adam"] = side_by_side(1000, 128, 25.0)
    print(found["against Adam"], flush=True)
    write_json(RESULTS, found | stamp(seconds=time.perf_counter() - start))
    found["huge"] = huge(100_000, 512, (30.0, 60.0))
    print(found["huge"], flush=True)
    write_json(RESULTS, found | stamp(seconds=time.perf_counter() - start))


if __name__ == "__main__":
    main()

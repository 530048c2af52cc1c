"""Evaluate 3,368 queries against a gallery of 15,913 in 2,048 dimensions, the size of Market-1501.

Ours is compared with two common implementations: a loop with a product, a sort and a walk along the ranking
for each query; and all products and sorts at once, in a gigabyte, followed by a walk for each query.

Run: python -m benchmarks.retrieval     (into results/bench_retrieval.json; 2 GB of memory, three minutes)
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import peak_bytes
from tammes.lab.record_stamp import stamp, write_record
from tammes.metrics.retrieval import Shots, retrieval_metrics

RESULTS = Path("results/bench_retrieval.json")
THREADS = 2
Q, G, D, PEOPLE, CAMERAS = 3368, 15913, 2048, 750, 6
BLOCKS = 1_000_000
"""Images of the large gallery, in 128 dimensions."""


def problem(q: int, g: int, d: int) -> tuple[torch.Tensor, torch.Tensor, Shots, Shots]:
    """Noisy embeddings of `PEOPLE` people; part of the gallery is distractors (0) and junk (-1)."""
    generator = torch.Generator().manual_seed(0)
    people = torch.randint(1, PEOPLE + 1, (q + g,), generator=generator)
    kind = torch.rand(q + g, generator=generator)
    held = people.where(kind > 0.15, 0).where(kind > 0.02, -1)
    cameras = torch.randint(CAMERAS, (q + g,), generator=generator)
    centers = torch.randn(PEOPLE + 1, d, generator=generator)
    points = torch.randn(q + g, d, generator=generator).mul_(3).add_(centers[people])
    return points[:q], points[q:], Shots(people[:q], cameras[:q]), Shots(held[q:], cameras[q:])


def walk(order: np.ndarray, person: int, camera: int, people: np.ndarray, cameras: np.ndarray) -> float:
    """Average precision of one ranking; NaN if it has no match."""
    right = people[order] == person
    kept = ~(right & (cameras[order] == camera)) & (people[order] != -1)
    right = right[kept]
    hits = right.cumsum()
    return float(np.mean((hits / (np.arange(len(right)) + 1.0))[right])) if right.any() else np.nan


def query_by_query(queries: np.ndarray, gallery: np.ndarray, asked: Shots, held: Shots) -> np.ndarray:
    """A product, a sort and a walk for each query."""
    ids = [part.numpy() for part in (*asked, *held) if part is not None]
    return np.array(
        [walk(np.argsort(-(gallery @ q)), ids[0][i], ids[1][i], *ids[2:]) for i, q in enumerate(queries)]
    )


def whole_matrix(queries: np.ndarray, gallery: np.ndarray, asked: Shots, held: Shots) -> np.ndarray:
    """All products, all sorts, then a walk for each query."""
    ids = [part.numpy() for part in (*asked, *held) if part is not None]
    orders = np.argsort(-(queries @ gallery.T), axis=1)
    return np.array([walk(order, ids[0][i], ids[1][i], *ids[2:]) for i, order in enumerate(orders)])


def timed(run: Any, *args: Any, rounds: int) -> tuple[float, Any]:
    """The shortest time of `rounds` calls, and the result."""
    best, answer = float("inf"), None
    for _ in range(rounds):
        start = time.perf_counter()
        answer = run(*args)
        best = min(best, time.perf_counter() - start)
    return best, answer


def main() -> None:
    """Measure time, agreement and memory."""
    torch.set_num_threads(THREADS)
    start = time.perf_counter()
    queries, gallery, asked, held = problem(Q, G, D)
    unit = [torch.nn.functional.normalize(x).numpy() for x in (queries, gallery)]
    ours, found = timed(retrieval_metrics, queries, gallery, asked, held, rounds=3)
    rows: dict[str, Any] = {"ours, seconds": round(ours, 2)}
    for name, loop in (("query by query", query_by_query), ("whole matrix", whole_matrix)):
        seconds, precision = timed(loop, *unit, asked, held, rounds=1)
        rows |= {
            f"{name}, seconds": round(seconds, 2),
            f"{name}, times ours": round(seconds / ours, 2),
            f"{name}, largest difference of an AP": float(
                np.nanmax(np.abs(precision - found.average_precision))
            ),
            f"{name}, difference of mAP": float(abs(np.nanmean(precision) - found.numbers()["mAP"])),
        }
    product = timed(lambda: queries @ gallery.T, rounds=3)[0]
    rows["the product alone, seconds"] = round(product, 2)
    rows["beyond embeddings, peak MiB"] = (
        peak_bytes(lambda: retrieval_metrics(queries, gallery, asked, held)) >> 20
    )
    large = problem(64, BLOCKS, 128)
    rows["64 queries, a million in 128 dimensions, seconds"] = round(
        timed(retrieval_metrics, *large, rounds=1)[0], 2
    )
    for name, value in rows.items():
        print(f"{name}: {value}", flush=True)
    size = {"queries": Q, "gallery": G, "dimensions": D}
    write_record(RESULTS, size | rows | {"stamp": stamp(seconds=time.perf_counter() - start)})


if __name__ == "__main__":
    main()

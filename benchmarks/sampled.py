"""Time and memory of a sampled step: the cost depends on the sample, not on the number of classes.

Run: python -m benchmarks.sampled     (into results/bench_sampled.json; 12 GB of memory, about two minutes)
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tammes import PrototypeHead, parse
from tammes.heads import RowSGD
from tammes.lab.record_stamp import stamp, write_record

RESULTS = Path("results/bench_sampled.json")
THREADS, STEPS = 2, 7
N, D = 256, 128
SAMPLE = 10_000
CASES = [(k, SAMPLE / k) for k in (100_000, 1_000_000, 10_000_000)] + [
    (k, 0.01) for k in (100_000, 1_000_000, 10_000_000)
]


def training_step(head: PrototypeHead, optimizer: RowSGD) -> Callable[[], None]:
    """Forward, backward and update on a new random batch."""

    def run() -> None:
        embeddings = torch.randn(N, D, requires_grad=True)
        optimizer.zero_grad()
        head(embeddings, torch.randint(head.num_classes, (N,))).backward()
        optimizer.step()

    return run


def products(sample: int) -> Callable[[], None]:
    """The three unavoidable matrix products for this number of classes."""
    z, w, gradient = torch.randn(N, D), torch.randn(sample, D), torch.randn(N, sample)
    out = torch.empty(N, sample), torch.empty_like(z), torch.empty_like(w)

    def run() -> None:
        torch.mm(z, w.T, out=out[0])
        torch.mm(gradient, w, out=out[1])
        torch.mm(gradient.T, z, out=out[2])

    return run


def seconds(run: Callable[[], None]) -> float:
    """Median over `STEPS` runs after a warm-up."""
    times = []
    run()
    for _ in range(STEPS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times)


def measure(k: int, rate: float, text: str = "CosFace(s=64, m=0.35)") -> dict[str, Any]:
    """Time of a step, also relative to the three products of its sample, and peak memory."""
    torch.manual_seed(0)
    head = PrototypeHead(D, k, parse(text), sample_rate=rate)
    optimizer = RowSGD(head.param_groups(), lr=0.1, momentum=0.9)
    step = training_step(head, optimizer)
    step()
    optimizer.state[head.weight]["momentum_buffer"].zero_()  # touch all its pages, as after an epoch
    grad = head.weight.grad
    assert grad is not None
    sample = grad._nnz()
    taken, floor = seconds(step), seconds(products(sample))
    return {
        "k": k,
        "rate": rate,
        "sample": sample,
        "objective": text,
        "seconds": round(taken, 4),
        "seconds, three products of the sample": round(floor, 4),
        "ratio": round(taken / floor, 2),
        "peak GiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "weights and momentum, GiB": round(2 * 4 * k * D / 2**30, 2),
    }


def fresh(*args: Any) -> dict[str, Any]:
    """Run `measure` in a new process, so that its peak memory is not affected by other measurements."""
    command = [sys.executable, "-m", "benchmarks.sampled", "call", json.dumps(args)]
    return json.loads(subprocess.check_output(command, text=True).splitlines()[-1])


def main() -> None:
    """Measure every case, and the largest also with R_w, which needs the sum of all prototypes."""
    start = time.perf_counter()
    cases: list[tuple[Any, ...]] = [*CASES, (10_000_000, 0.01, "CosFace(s=64, m=0.35) + 100*R_w")]
    rows = []
    for case in cases:
        rows.append(fresh(*case))
        print(json.dumps(rows[-1]), flush=True)
    growth = rows[2]["seconds"] / rows[0]["seconds"]
    print(f"Same sample, 100 times the classes: {growth:.2f} times the seconds.")
    write_record(RESULTS, {"n": N, "d": D, "rows": rows, "stamp": stamp(seconds=time.perf_counter() - start)})


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    if sys.argv[1:2] == ["call"]:
        print(json.dumps(measure(*json.loads(sys.argv[2]))))
    else:
        main()

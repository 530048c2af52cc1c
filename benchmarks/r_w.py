"""Cost of the zero-centroid regularizer as a fraction of a training step, which must stay below 1 %.

The head is timed with and without R_w in turn; their difference is compared with a complete training step.
Run: python -m benchmarks.r_w     (into results/bench_r_w.json; about a minute)
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import side_by_side
from tammes import PrototypeHead, parse
from tammes.lab.models import build
from tammes.lab.record_stamp import stamp, write_record

RESULTS = Path("results/bench_r_w.json")
THREADS, N = 2, 128
LOSS = "LMSoftmax(s=5)"
CASES = (("fastnet-half", 10, 15), ("fastnet-half", 1000, 15), ("resnet18", 10, 2))
"""Network, classes, rounds."""


def head_step(head: PrototypeHead) -> Callable[[], None]:
    """Compute the loss and gradients of the head alone."""
    embeddings = torch.randn(N, head.in_features, requires_grad=True)
    labels = torch.randint(head.num_classes, (N,))

    def run() -> None:
        head(embeddings, labels).backward()

    return run


def whole_step(model: str, k: int) -> Callable[[], None]:
    """A complete training step: network, head, gradients and update, with R_w."""
    net = build(model, in_channels=3, image_size=32)
    head = PrototypeHead(net.out_features, k, parse(f"{LOSS} + 1000*R_w"))
    weights = [p for p in (*net.parameters(), *head.parameters()) if p.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=1e-3, momentum=0.9)
    images, labels = torch.randn(N, 3, 32, 32), torch.randint(k, (N,))

    def run() -> None:
        optimizer.zero_grad()
        head(net(images), labels).backward()
        optimizer.step()

    return run


def measure(model: str, k: int, rounds: int, steps: int = 20) -> dict[str, Any]:
    """Milliseconds of a step, of its head, and of R_w."""
    torch.manual_seed(0)
    d = build(model, in_channels=3, image_size=32).out_features
    heads = {text: PrototypeHead(d, k, parse(text)) for text in (LOSS, f"{LOSS} + 1000*R_w")}
    times = side_by_side({t: head_step(h) for t, h in heads.items()}, rounds=30, steps=steps)
    plain, regularized = times.values()
    step = side_by_side({"step": whole_step(model, k)}, rounds=rounds)["step"]
    cost = regularized - plain
    return {
        "model": model,
        "k": k,
        "d": d,
        "batch": N,
        "step ms": round(1000 * step, 3),
        "head ms": round(1000 * plain, 4),
        "R_w ms": round(1000 * cost, 4),
        "R_w % of a step": round(100 * cost / step, 4),
    }


def main() -> None:
    torch.set_num_threads(THREADS)
    start = time.perf_counter()
    rows = [measure(*case) for case in CASES]
    for row in rows:
        print(row)
    config = {"loss": LOSS, "batch": N}
    write_record(RESULTS, {"config": config, "rows": rows} | stamp(seconds=time.perf_counter() - start))


if __name__ == "__main__":
    main()

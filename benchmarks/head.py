"""Time and memory of the heads: against the matrix products nobody can avoid, and against peers.

Run: python -m benchmarks.head            (all, into results/bench_head.json and .png)
     python -m benchmarks.head small      (one part: small, large, memory, million, curves, imports)
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.timing import peak_bytes, side_by_side
from tammes import PrototypeHead, parse
from tammes.heads.streamed import LEAN_BUFFER_BYTES, auto_block, streamed
from tammes.heads.workspace import Workspace
from tammes.losses.evaluate import loss_of_batch
from tammes.provenance import stamp, write_json

RESULTS = Path("results/bench_head.json")
THREADS = 2


class Batch:
    """Random embeddings, prototypes and labels of one size, with seed 0."""

    def __init__(self, n: int, d: int, k: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.n, self.d, self.k = n, d, k
        self.embeddings = torch.randn(n, d, generator=generator).requires_grad_()
        self.weight = torch.randn(k, d, generator=generator).requires_grad_()
        self.labels = torch.randint(k, (n,), generator=generator)

    def forget_gradients(self) -> None:
        self.embeddings.grad = self.weight.grad = None

    def backward(self, loss: Callable[[], Tensor]) -> None:
        self.forget_gradients()
        loss().backward()


def bare_products(batch: Batch) -> Callable[[], object]:
    """z W', G W and G' z, the floor: nobody gets by without these, nor without room for the last two."""
    z, w = batch.embeddings.detach(), batch.weight.detach()
    gradient = torch.randn(batch.n, batch.k)
    similarities = torch.empty(batch.n, batch.k)

    def run() -> tuple[Tensor, Tensor]:
        torch.mm(z, w.T, out=similarities)
        return gradient @ w, gradient.T @ z

    return run


def ours(batch: Batch, text: str, **options: Any) -> Callable[[], None]:
    """A head's step on `batch`, with the batch's own prototypes."""
    head = PrototypeHead(batch.d, batch.k, parse(text), **options)
    head.weight.data = batch.weight.detach()

    def run() -> None:
        head.weight.grad = batch.embeddings.grad = None
        head(batch.embeddings, batch.labels).backward()

    return run


def by_blocks(
    batch: Batch, text: str, *, keep: bool, workspace: Workspace | None = None
) -> Callable[[], None]:
    """The streamed computation itself, with few of the similarities kept, or all of them."""
    kept = 2**40 if keep else LEAN_BUFFER_BYTES
    produce = partial(streamed, block_size=auto_block(batch.n), buffer_bytes=kept, workspace=workspace)
    objective = parse(text)
    args = (objective, batch.embeddings, batch.weight, batch.labels)
    return lambda: batch.backward(lambda: loss_of_batch(*args, produce=produce, class_values={})[0])


def by_hand(batch: Batch, margin: float, *, arc: bool) -> Callable[[], None]:
    """The same formula as a PyTorch user writes it."""

    def loss() -> Tensor:
        cosine = F.linear(F.normalize(batch.embeddings), F.normalize(batch.weight))
        rows = torch.arange(batch.n)
        target = cosine[rows, batch.labels]
        moved = torch.cos(torch.acos(target.clamp(-1 + 1e-7, 1 - 1e-7)) + margin) if arc else target - margin
        logits = 64 * cosine
        logits[rows, batch.labels] = 64 * moved
        return F.cross_entropy(logits, batch.labels)

    return lambda: batch.backward(loss)


def metric_learning(batch: Batch, *, arc: bool) -> Callable[[], None]:
    """pytorch-metric-learning's loss of the same formula."""
    from pytorch_metric_learning import losses

    kind = losses.ArcFaceLoss if arc else losses.CosFaceLoss
    loss = kind(batch.k, batch.d, margin=28.6 if arc else 0.35, scale=64)

    def run() -> None:
        loss.W.grad = batch.embeddings.grad = None
        loss(batch.embeddings, batch.labels).backward()

    return run


def torch_linear(batch: Batch) -> Callable[[], None]:
    """torch's chunked linear cross-entropy: a plain softmax, no margins, no normalisation."""
    return lambda: batch.backward(
        lambda: F.linear_cross_entropy(batch.embeddings, batch.weight, batch.labels)
    )


def small() -> dict[str, Any]:
    """Few classes: the head against the formula by hand and against pytorch-metric-learning."""
    rows = {}
    for k in (1_000, 10_000):
        for name, text, margin in (
            ("CosFace", "CosFace(s=64, m=0.35)", 0.35),
            ("ArcFace", "ArcFace(s=64, m=0.5)", 0.5),
        ):
            batch, arc = Batch(256, 512, k), name == "ArcFace"
            best = side_by_side(
                {
                    "tammes": ours(batch, text),
                    "tammes, dense": ours(batch, text, block_size=None),
                    "by hand": by_hand(batch, margin, arc=arc),
                    "pytorch-metric-learning": metric_learning(batch, arc=arc),
                },
                rounds=30 if k == 1_000 else 10,
            )
            rows[f"{name}, n=256, d=512, k={k}"] = ratios(best, "by hand")
    return rows


def large() -> dict[str, Any]:
    """Many classes: against the three bare products."""
    rows = {}
    for n, k in ((256, 100_000), (2048, 50_000)):
        batch = Batch(n, 512, k)
        contenders: dict[str, Callable[[], object]] = {"three products": bare_products(batch)}
        for text in ("LMSoftmax(s=16)", "ArcFace(s=64, m=0.5)"):
            contenders[f"{text}, streamed"] = by_blocks(batch, text, keep=False, workspace=Workspace())
            contenders[f"{text}, buffer kept"] = by_blocks(batch, text, keep=True, workspace=Workspace())
        contenders["pytorch-metric-learning ArcFace"] = metric_learning(batch, arc=True)
        contenders["torch linear_cross_entropy"] = torch_linear(batch)
        rows[f"n={n}, d=512, k={k}"] = ratios(side_by_side(contenders, rounds=8), "three products")
    return rows


def ratios(best: dict[str, float], unit: str) -> dict[str, Any]:
    """Times as multiples of one contender's, and that one in seconds."""
    return {f"seconds, {unit}": round(best[unit], 4)} | {
        name: round(seconds / best[unit], 3) for name, seconds in best.items() if name != unit
    }


CONTENDERS: dict[str, Callable[[Batch], Callable[[], None]]] = {
    "ArcFace, streamed": lambda batch: by_blocks(batch, "ArcFace(s=64, m=0.5)", keep=False),
    "LMSoftmax, streamed": lambda batch: by_blocks(batch, "LMSoftmax(s=16)", keep=False),
    "ArcFace, buffer kept": lambda batch: by_blocks(batch, "ArcFace(s=64, m=0.5)", keep=True),
    "ArcFace, dense": lambda batch: ours(batch, "ArcFace(s=64, m=0.5)", block_size=None),
    "pytorch-metric-learning ArcFace": lambda batch: metric_learning(batch, arc=True),
    "torch linear_cross_entropy": torch_linear,
}


def memory() -> dict[str, Any]:
    """Megabytes of a step beyond weights, their gradients and embeddings, each in a process of its own."""
    rows: dict[str, Any] = {}
    for n, k in ((2048, 12_500), (2048, 25_000), (2048, 50_000)):
        rows[f"n={n}, d=512, k={k}"] = {name: fresh("memory_of", name, n, k) for name in CONTENDERS}
    return rows


def memory_of(name: str, n: int, k: int) -> float:
    """A step drops the last gradients first, so that the level before it contains one set of them."""
    return round(peak_bytes(CONTENDERS[name](Batch(n, 512, k))) / 2**20, 1)


def million() -> dict[str, Any]:
    """n=512, d=512, k=1,000,000, full softmax, with 16 GiB of address space for data."""
    names = ("LMSoftmax, streamed", "ArcFace, streamed", "pytorch-metric-learning ArcFace")
    return {f"{name}, n=512, d=512, k=1000000": fresh("million_of", name) for name in names}


def million_of(name: str) -> dict[str, float]:
    resource.setrlimit(resource.RLIMIT_DATA, (16 * 2**30, 16 * 2**30))
    batch = Batch(512, 512, 1_000_000)
    step = CONTENDERS[name](batch)
    step()
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    return {
        "seconds": round(seconds, 2),
        "peak GiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def curves() -> dict[str, Any]:
    """Time over n, d and k, two decades each: ours, the three products, pytorch-metric-learning."""
    sizes = {
        "n": [(n, 512, 10_000) for n in (16, 64, 256, 1024, 2048)],
        "d": [(256, d, 10_000) for d in (16, 64, 256, 1024, 2048)],
        "k": [(256, 512, k) for k in (1_000, 4_000, 16_000, 64_000, 128_000)],
    }
    return {axis: [curve_point(*size) for size in points] for axis, points in sizes.items()}


def curve_point(n: int, d: int, k: int) -> dict[str, Any]:
    batch = Batch(n, d, k)
    contenders = {"three products": bare_products(batch)} | {
        name: CONTENDERS[name](batch) for name in PLOTTED if name in CONTENDERS
    }
    best = side_by_side(contenders, rounds=3)
    return {"n": n, "d": d, "k": k} | {name: round(seconds, 5) for name, seconds in best.items()}


def imports() -> dict[str, float]:
    """Seconds that `import tammes` takes beyond `import torch`, and `free_features` for ten classes."""
    code = "import time, torch; t = time.perf_counter(); import tammes; print(time.perf_counter() - t)"
    beyond = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5)]
    from tammes.losses import NormFace
    from tammes.theory import free_features

    start = time.perf_counter()
    free_features(NormFace(scale=5), [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50], 64)
    seconds = time.perf_counter() - start
    return {"import tammes beyond torch": round(min(beyond), 3), "free_features, k=10": round(seconds, 3)}


PLOTTED = (
    "pytorch-metric-learning ArcFace",
    "torch linear_cross_entropy",
    "ArcFace, streamed",
    "ArcFace, buffer kept",
    "three products",
)


def plot() -> None:
    """Time and memory over k, from the results file."""
    import matplotlib.pyplot as plt

    found = json.loads(RESULTS.read_text())
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    colours = dict(zip(PLOTTED, ("#9b2226", "#ca6702", "#005f73", "#0a9396", "#adb5bd"), strict=True))
    points = found["curves"]["k"]
    memory = {int(size.rpartition("=")[2]): found for size, found in found["memory"].items()}
    for name, colour in colours.items():
        style = {"marker": "o", "color": colour, "label": name}
        left.plot([p["k"] for p in points], [1e3 * p[name] for p in points], **style)
        measured = {k: row[name] for k, row in memory.items() if isinstance(row.get(name), float)}
        if measured:
            right.plot(list(measured), list(measured.values()), **style)
    left.set(ylabel="milliseconds a step", title="Time (n = 256, d = 512)")
    right.set(ylabel="MB beyond weights, gradients and embeddings", title="Memory (n = 2048, d = 512)")
    right.set_xticks(list(memory), [f"{k:,}" for k in memory])
    for axis in (left, right):
        axis.set(xscale="log", yscale="log", xlabel="classes k")
        axis.spines[["top", "right"]].set_visible(False)
    right.minorticks_off()
    right.set_xticks(list(memory), [f"{k:,}" for k in memory])
    left.legend(frameon=False)
    figure.savefig(RESULTS.with_suffix(".png"), dpi=110)


def fresh(function: str, *args: str | int) -> Any:
    """A function of this module in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.head", "call", json.dumps([function, *args])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"failed: {(done.stderr.strip().splitlines() or ['killed'])[-1][:120]}"
    return json.loads(done.stdout.splitlines()[-1])


PARTS = {part.__name__: part for part in (small, large, memory, million, curves, imports)}


def main(names: list[str]) -> None:
    """Run the named parts, or all, and put what they found into the results file."""
    torch.set_num_threads(THREADS)
    start = time.perf_counter()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names or PARTS:
        print(f"{name} ...", flush=True)
        found[name] = PARTS[name]()
        print(json.dumps(found[name], indent=1), flush=True)
        found["stamp"] = stamp(seconds=time.perf_counter() - start) | {"seed": 0, "dtype": "float32"}
        write_json(RESULTS, found)
    if {"curves", "memory"} <= found.keys():
        plot()


if __name__ == "__main__":
    if sys.argv[1:2] == ["call"]:
        torch.set_num_threads(THREADS)
        function, *args = json.loads(sys.argv[2])
        print(json.dumps(globals()[function](*args)))
    else:
        main(sys.argv[1:])

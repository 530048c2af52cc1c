"""Time and memory of the heads, relative to the unavoidable matrix products and to other libraries.

Run: python -m benchmarks.head                  (all, into results/bench_head.json and .png)
     python -m benchmarks.head small            (or large, family, memory, million, half, curves, imports,
                                                commands)
     python -m benchmarks.head --device cuda    (into results/bench_head_cuda.json and .png)
     python -m benchmarks.head --table README.md docs/scaling.md    (fill in the tables from the record)
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor

from benchmarks import timing
from benchmarks.head_tables import fill_pages, many_classes
from tammes import PrototypeHead, parse
from tammes.heads._stream.streamed import auto_block
from tammes.lab.record_stamp import stamp, write_record

THREADS = 2
DEVICE = "cpu"


def results() -> Path:
    """The results file of this device."""
    return Path("results/bench_head.json" if DEVICE == "cpu" else f"results/bench_head_{DEVICE}.json")


class Batch:
    """Random embeddings, prototypes and labels of one size, with seed 0."""

    def __init__(self, n: int, d: int, k: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.n, self.d, self.k = n, d, k
        self.embeddings = torch.randn(n, d, generator=generator).to(DEVICE).requires_grad_()
        self.weight = torch.randn(k, d, generator=generator).to(DEVICE).requires_grad_()
        self.labels = torch.randint(k, (n,), generator=generator).to(DEVICE)

    def forget_gradients(self) -> None:
        self.embeddings.grad = self.weight.grad = None

    def backward(self, loss: Callable[[], Tensor]) -> None:
        self.forget_gradients()
        loss().backward()


def bare_products(batch: Batch) -> Callable[[], object]:
    """z W', G W and G' z: the lower limit of any implementation, with the memory of the last two."""
    z, w = batch.embeddings.detach(), batch.weight.detach()
    gradient = torch.randn(batch.n, batch.k, device=DEVICE)
    similarities = torch.empty(batch.n, batch.k, device=DEVICE)

    def run() -> tuple[Tensor, Tensor]:
        torch.mm(z, w.T, out=similarities)
        return gradient @ w, gradient.T @ z

    return run


def ours(batch: Batch, text: str, **options: Any) -> Callable[[], None]:
    """A training step of a head on `batch`, with the prototypes of the batch."""
    head = PrototypeHead(batch.d, batch.k, parse(text), device=DEVICE, **options)
    head.weight.data = batch.weight.detach()

    def run() -> None:
        head.weight.grad = batch.embeddings.grad = None
        head(batch.embeddings, batch.labels).backward()

    return run


def lean(batch: Batch, text: str) -> Callable[[], None]:
    """The same with an explicit block size, which keeps few of the similarities."""
    return ours(batch, text, block_size=auto_block(batch.n))


def by_hand(batch: Batch, margin: float, *, arc: bool) -> Callable[[], None]:
    """The same formula as a PyTorch user would write it."""

    def loss() -> Tensor:
        cosine = F.linear(F.normalize(batch.embeddings), F.normalize(batch.weight))
        rows = torch.arange(batch.n, device=DEVICE)
        target = cosine[rows, batch.labels]
        moved = torch.cos(torch.acos(target.clamp(-1 + 1e-7, 1 - 1e-7)) + margin) if arc else target - margin
        logits = 64 * cosine
        logits[rows, batch.labels] = 64 * moved
        return F.cross_entropy(logits, batch.labels)

    return lambda: batch.backward(loss)


def metric_learning(batch: Batch, *, arc: bool) -> Callable[[], None]:
    """The loss of pytorch-metric-learning with the same formula."""
    from pytorch_metric_learning import losses

    kind = losses.ArcFaceLoss if arc else losses.CosFaceLoss
    loss = kind(batch.k, batch.d, margin=28.6 if arc else 0.35, scale=64).to(DEVICE)

    def run() -> None:
        loss.W.grad = batch.embeddings.grad = None
        loss(batch.embeddings, batch.labels).backward()

    return run


def torch_linear(batch: Batch, *, chunked: bool = True) -> Callable[[], None]:
    """torch's linear cross-entropy: a plain softmax of inner products, without margins or normalization.

    Embeddings and prototypes are scaled so that the logits are 16 times a cosine. With unscaled random
    vectors the logits would spread so far that most exponentials are denormal numbers, which are slow.
    """
    embeddings = (16 * F.normalize(batch.embeddings.detach())).requires_grad_()
    weight = F.normalize(batch.weight.detach()).requires_grad_()
    options = torch.nn.LinearCrossEntropyOptions() if chunked else None

    def run() -> None:
        embeddings.grad = weight.grad = None
        F.linear_cross_entropy(embeddings, weight, batch.labels, options=options).backward()

    return run


def small() -> dict[str, Any]:
    """Few classes: the head, the formula written by hand, and pytorch-metric-learning; 10 steps in a turn."""
    rows = {}
    for k in (1_000, 10_000):
        for name, text, margin in (
            ("CosFace", "CosFace(s=64, m=0.35)", 0.35),
            ("ArcFace", "ArcFace(s=64, m=0.5)", 0.5),
        ):
            batch, arc = Batch(256, 512, k), name == "ArcFace"
            best = timing.side_by_side(
                {
                    "tammes": ours(batch, text),
                    "tammes, dense": ours(batch, text, block_size=None),
                    "by hand": by_hand(batch, margin, arc=arc),
                    "pytorch-metric-learning": metric_learning(batch, arc=arc),
                },
                rounds=40 if k == 1_000 else 6,
                steps=10,
                device=DEVICE,
            )
            rows[f"{name}, n=256, d=512, k={k}"] = ratios(best, "by hand")
    return rows


def large() -> dict[str, Any]:
    """Many classes: time relative to the three matrix products."""
    rows = {}
    for n, k in ((256, 100_000), (2048, 50_000)):
        batch = Batch(n, 512, k)
        contenders: dict[str, Callable[[], object]] = {"three products": bare_products(batch)}
        for text in ("LMSoftmax(s=16)", "ArcFace(s=64, m=0.5)"):
            contenders[f"{text}, lean"] = lean(batch, text)
            contenders[f"{text}, default"] = ours(batch, text)
        contenders["pytorch-metric-learning ArcFace"] = metric_learning(batch, arc=True)
        contenders["torch linear_cross_entropy, chunked"] = torch_linear(batch)
        contenders["torch linear_cross_entropy, whole"] = torch_linear(batch, chunked=False)
        best = timing.side_by_side(contenders, rounds=6 if n < 1000 else 4, device=DEVICE)
        rows[f"n={n}, d=512, k={k}"] = ratios(best, "three products")
    return rows


FAMILY = {
    "BalancedSoftmax": "BalancedSoftmax(normalize=True, s=64)",
    "LogitAdjusted": "LogitAdjusted(normalize=True, s=64)",
    "VS": "VS(normalize=True, s=64)",
    "AdaFace": "AdaFace",
    "MagFace": "MagFace",
    "ElasticFace": "ElasticFace",
    "CurricularFace": "CurricularFace",
    "MVSoftmax": "MVSoftmax",
    "Circle": "Circle",
    "AdaCos": "AdaCos",
}


CENTERS = 3
SUB_CENTERS = f"ArcFace, {CENTERS} sub-centers"


def sub_centers(batch: Batch) -> Callable[[], None]:
    """The step of a head with as many prototypes as `batch`, several for each class."""
    k = batch.k // CENTERS
    head = PrototypeHead(batch.d, k, parse("ArcFace(s=64, m=0.5)"), centers=CENTERS, device=DEVICE)
    head.weight.data = batch.weight.detach()[: k * CENTERS].view(head.weight.shape)
    labels = batch.labels % k

    def run() -> None:
        head.weight.grad = batch.embeddings.grad = None
        head(batch.embeddings, labels).backward()

    return run


def family() -> dict[str, Any]:
    """Time and memory of a step for each loss, relative to ArcFace in the same head."""
    n, d, k = 256, 512, 100_000
    batch, rows = Batch(n, d, k), {}
    contenders = {"ArcFace": ours(batch, "ArcFace(s=64, m=0.5)"), SUB_CENTERS: sub_centers(batch)}
    rows[SUB_CENTERS] = ratios(timing.side_by_side(contenders, rounds=10, device=DEVICE), "ArcFace")
    for name, text in FAMILY.items():
        pair = {"ArcFace": "ArcFace(s=64, m=0.5)", name: text}
        contenders = {one: ours(batch, own, class_counts=range(1, k + 1)) for one, own in pair.items()}
        rows[name] = ratios(timing.side_by_side(contenders, rounds=10, device=DEVICE), "ArcFace")
    memory = {name: fresh("family_memory", name) for name in ("ArcFace", *FAMILY, SUB_CENTERS)}
    return {f"n={n}, d={d}, k={k}": rows, "megabytes": memory}


def family_memory(name: str) -> float:
    if name == SUB_CENTERS:
        return extra_megabytes(sub_centers, 256, 100_000)
    text = FAMILY.get(name, "ArcFace(s=64, m=0.5)")
    return extra_megabytes(lambda batch: ours(batch, text, class_counts=range(1, batch.k + 1)), 256, 100_000)


def ratios(best: dict[str, float], unit: str) -> dict[str, Any]:
    """Times relative to one contender, and the time of that one in seconds."""
    return {f"seconds, {unit}": round(best[unit], 4)} | {
        name: round(seconds / best[unit], 3) for name, seconds in best.items() if name != unit
    }


CONTENDERS: dict[str, Callable[[Batch], Callable[[], None]]] = {
    "ArcFace, lean": lambda batch: lean(batch, "ArcFace(s=64, m=0.5)"),
    "ArcFace, default": lambda batch: ours(batch, "ArcFace(s=64, m=0.5)"),
    "ArcFace, dense": lambda batch: ours(batch, "ArcFace(s=64, m=0.5)", block_size=None),
    "pytorch-metric-learning ArcFace": lambda batch: metric_learning(batch, arc=True),
    "torch linear_cross_entropy, whole": lambda batch: torch_linear(batch, chunked=False),
    "torch linear_cross_entropy, chunked": torch_linear,
}


def memory() -> dict[str, Any]:
    """Megabytes of a step beyond weights, gradients and embeddings; one process per contender."""
    rows: dict[str, Any] = {}
    for n, k in ((2048, 12_500), (2048, 25_000), (2048, 50_000)):
        rows[f"n={n}, d=512, k={k}"] = {name: fresh("memory_of", name, n, k) for name in CONTENDERS}
    return rows


def memory_of(name: str, n: int, k: int) -> float:
    return extra_megabytes(CONTENDERS[name], n, k)


def extra_megabytes(contender: Callable[[Batch], Callable[[], None]], n: int, k: int) -> float:
    """Peak memory of two steps above the level before the first, minus one set of gradients.

    A head keeps its buffers between steps, so a baseline taken after a step would hide them. A step with a
    small batch runs first, so that libraries and threads are not counted.
    """
    contender(Batch(8, 512, 64))()
    step = contender(Batch(n, 512, k))

    def two_steps() -> None:
        step()
        step()

    peak = timing.peak_bytes(two_steps, warm=False, device=DEVICE)
    return round((peak - 4 * 512 * (n + k)) / 2**20, 1)


def million() -> dict[str, Any]:
    """n=512, d=512, k=1,000,000, full softmax, with 16 GiB of address space for data."""
    names = ("ArcFace, lean", "pytorch-metric-learning ArcFace")
    return {f"{name}, n=512, d=512, k=1000000": fresh("million_of", name) for name in names}


def million_of(name: str) -> dict[str, float]:
    if DEVICE == "cpu":
        resource.setrlimit(resource.RLIMIT_DATA, (16 * 2**30, 16 * 2**30))
    step = CONTENDERS[name](Batch(512, 512, 1_000_000))
    step()
    seconds = timing.seconds_of(step, DEVICE)
    return {"seconds": round(seconds, 2), "peak GiB": round(most_memory() / 2**30, 2)}


def most_memory() -> int:
    """Peak memory of this process on its device, in bytes."""
    if DEVICE == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return torch.cuda.max_memory_allocated()


def half() -> dict[str, Any]:
    """`fast_products` (bfloat16 products, float32 sums): time of a step, and errors against float64."""
    text, batch = "ArcFace(s=64, m=0.5)", Batch(256, 512, 10_000)
    contenders = {
        "float32": ours(batch, text),
        "fast_products": ours(batch, text, fast_products=True),
    }
    best = timing.side_by_side(contenders, rounds=10, device=DEVICE)
    truth = outcome(batch, text, torch.float64)
    found = {
        "float32": outcome(batch, text, torch.float32),
        "fast_products": outcome(batch, text, torch.float32, fast_products=True),
    }
    errors = {name: relative_errors(values, truth) for name, values in found.items()}
    return {"n=256, d=512, k=10000": ratios(best, "float32") | {"relative errors": errors}}


def outcome(batch: Batch, text: str, dtype: torch.dtype, **options: Any) -> dict[str, Tensor]:
    """Loss and gradients of a step, in float64."""
    head = PrototypeHead(batch.d, batch.k, parse(text), device=DEVICE, dtype=dtype, **options)
    head.weight.data = batch.weight.detach().to(dtype)
    embeddings = batch.embeddings.detach().to(dtype).requires_grad_()
    loss = head(embeddings, batch.labels)
    of_embeddings, of_weight = torch.autograd.grad(loss, [embeddings, head.weight])
    named = {"loss": loss.detach(), "of embeddings": of_embeddings, "of prototypes": of_weight}
    return {name: value.double() for name, value in named.items()}


def relative_errors(found: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, float]:
    """|found - truth| / |truth|, in Euclidean norms."""
    return {
        name: float(f"{float((value - truth[name]).norm() / truth[name].norm()):.2g}")
        for name, value in found.items()
    }


def curves() -> dict[str, Any]:
    """Time against n, d and k, over two decades each: ours, the three products, pytorch-metric-learning."""
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
    best = timing.side_by_side(contenders, rounds=3, device=DEVICE)
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


COMMANDS = (
    "demo data train evaluate predict search verify embed "
    "export compare report inspect pack theory reproduce head"
)


def commands() -> dict[str, float]:
    """Seconds of the slowest `--help` page, and of `tammes predict` on one image; shortest of three each."""
    tammes = [str(Path(sys.executable).with_name("tammes"))]
    pages = [[], *([name] for name in COMMANDS.split())]
    helps = [shortest([*tammes, *page, "--help"]) for page in pages]
    with tempfile.TemporaryDirectory() as folder:
        image, run = f"{folder}/digit.png", f"{folder}/run"
        Image.fromarray((load_digits().images[0] * 15.9).astype("uint8")).save(image)
        subprocess.run(
            [*tammes, "train", "digits", "--epochs", "1", "--out", run], check=True, capture_output=True
        )
        predict = shortest([*tammes, "predict", run, image])
    return {"slowest --help": round(max(helps), 3), "predict, one image": round(predict, 2)}


def shortest(command: list[str]) -> float:
    """Seconds of a command, the shortest of three."""
    call = partial(subprocess.run, command, check=True, capture_output=True)
    return min(timing.seconds_of(call) for _ in range(3))


PLOTTED = (
    "pytorch-metric-learning ArcFace",
    "torch linear_cross_entropy, whole",
    "ArcFace, lean",
    "ArcFace, default",
    "three products",
)


def plot() -> None:
    """Plot time and memory against k, from the results file."""
    import matplotlib.pyplot as plt

    found = json.loads(results().read_text())
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    colors = dict(zip(PLOTTED, ("#9b2226", "#ca6702", "#005f73", "#0a9396", "#adb5bd"), strict=True))
    points = found["curves"]["k"]
    memory = {int(size.rpartition("=")[2]): found for size, found in found["memory"].items()}
    for name, color in colors.items():
        style = {"marker": "o", "color": color, "label": name}
        timed = {p["k"]: 1e3 * p[name] for p in points if name in p}
        left.plot(list(timed), list(timed.values()), **style)
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
    figure.savefig(results().with_suffix(".png"), dpi=110)


def fresh(function: str, *args: str | int) -> Any:
    """Run a function of this module in a new process."""
    call = json.dumps([function, *args])
    command = [sys.executable, "-m", "benchmarks.head", "--device", DEVICE, "--call", call]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"failed: {(done.stderr.strip().splitlines() or ['killed'])[-1][:120]}"
    return json.loads(done.stdout.splitlines()[-1])


MEASURED = (small, large, family, memory, million, half, curves, imports, commands)
PARTS = {part.__name__: part for part in MEASURED}


def main(arguments: list[str]) -> None:
    """Run the named parts, or all, and write their results to the results file."""
    global DEVICE
    parser = argparse.ArgumentParser(prog="python -m benchmarks.head", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; all by default")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--table", type=Path, nargs="+", metavar="PAGE", help="Fill in tables; run nothing.")
    parser.add_argument("--call", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device.")
    DEVICE = options.device
    torch.set_num_threads(THREADS)
    if options.table:
        fill_pages(options.table, json.loads(results().read_text()))
    elif options.call:
        function, *values = json.loads(options.call)
        print(json.dumps(globals()[function](*values)))
    else:
        run_parts(options.parts or list(PARTS))


def run_parts(names: list[str]) -> None:
    start = time.perf_counter()
    found = json.loads(results().read_text()) if results().exists() else {}
    for name in names:
        print(f"{name} ...", flush=True)
        found[name] = PARTS[name]()
        print(json.dumps(found[name], indent=1), flush=True)
        taken = stamp(seconds=time.perf_counter() - start, device=DEVICE)
        found["stamp"] = taken | {"seed": 0, "dtype": "float32"}  # of the part measured last
        found.setdefault("measured", {})[name] = {key: taken[key] for key in ("commit", "date")}
        write_record(results(), found)
    if {"curves", "memory"} <= found.keys():
        plot()
    if {"large", "memory", "million"} <= found.keys():
        print(many_classes(found))


if __name__ == "__main__":
    main(sys.argv[1:])

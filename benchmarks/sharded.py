"""The sharded head on 1, 2 and 4 ranks of this machine: time relative to one process, bytes sent per step.

Run: python -m benchmarks.sharded     (into results/bench_sharded.json and .png; about seven minutes)
     python -m benchmarks.sharded --table docs/sharded.md    (fill in the table from the record)

The global batch and the cores are the same for any number of ranks. Four ranks share two cores, so their time
shows the cost of sharding, not its benefit.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from tammes import PrototypeHead, parse
from tammes.heads import ShardedPrototypeHead
from tammes.lab.record_stamp import stamp, write_record
from tammes.lab.report.tables import fill

RESULTS = Path("results/bench_sharded.json")
CORES, STEPS = 2, 9
ROUNDS = {10_000: 31, 100_000: 5}
"""By number of classes: shorter steps vary more."""
N, D = 256, 512
OBJECTIVES = ("LMSoftmax(s=16)", "ArcFace(s=64, m=0.5)")
RANKS = (1, 2, 4)


def batch(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The embeddings and labels of all ranks."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, D, generator=generator), torch.randint(k, (N,), generator=generator)


def step(head: PrototypeHead, embeddings: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    """Forward and backward."""
    embeddings = embeddings.clone().requires_grad_()

    def run() -> None:
        head.weight.grad = embeddings.grad = None
        head(embeddings, labels).backward()

    return run


def best_seconds(run: Callable[[], None], wait: Callable[[], Any]) -> float:
    """Shortest time of several steps, one after the other as in training, after a warm-up together."""
    wait()
    run()
    best = float("inf")
    for _ in range(STEPS):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


@contextmanager
def counted(sent: list[float]) -> Iterator[None]:
    """Add to `sent[0]` the bytes that this rank must send in each collective, by the usual algorithms."""
    world = dist.get_world_size()
    shares: dict[str, tuple[int, float]] = {  # which argument it sends, and how often
        "all_gather_into_tensor": (1, world - 1),
        "all_reduce": (0, 2 * (world - 1) / world),
        "all_to_all_single": (1, (world - 1) / world),
    }
    originals = {name: getattr(dist, name) for name in shares}

    def counting(name: str) -> Callable[..., Any]:
        place, times = shares[name]

        def call(*arguments: Any, **options: Any) -> Any:
            sent[0] += times * arguments[place].nbytes
            return originals[name](*arguments, **options)

        return call

    for name in shares:
        setattr(dist, name, counting(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def alone(k: int, text: str) -> Callable[[], float]:
    """A turn of a plain head in this process, with all cores: its seconds per step."""
    torch.set_num_threads(CORES)
    run = step(PrototypeHead(D, k, parse(text)), *batch(k))
    return lambda: best_seconds(run, lambda: None)


def rank_main(rank: int, world_size: int, port: int, k: int, text: str, parent: Connection) -> None:
    """Run one rank: send the bytes of a step, then for each turn asked for the seconds per step."""
    torch.set_num_threads(max(CORES // world_size, 1))
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    head = ShardedPrototypeHead(D, k, parse(text))
    run = step(head, *(part.chunk(world_size)[rank] for part in batch(k)))
    for _ in range(3):  # from the third step on, batches are sent with the handshake
        run()
    sent = [0.0]
    with counted(sent):
        run()
    parent.send(int(sent[0]))
    while parent.recv():
        parent.send(best_seconds(run, dist.barrier))
    dist.destroy_process_group()


class Ranks:
    """Processes that share a head, and sleep while it is not their turn."""

    def __init__(self, world_size: int, k: int, text: str) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        context = torch.multiprocessing.get_context("spawn")
        self.connections, self.processes = [], []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            arguments = (rank, world_size, port, k, text, theirs)
            self.processes.append(context.Process(target=rank_main, args=arguments))
            self.processes[-1].start()
            self.connections.append(ours)
        self.sent_bytes = max(connection.recv() for connection in self.connections)

    def turn(self) -> float:
        """Seconds per step of the slowest rank."""
        for connection in self.connections:
            connection.send(True)
        return max(connection.recv() for connection in self.connections)

    def end(self) -> None:
        """End the processes."""
        for connection in self.connections:
            connection.send(False)
        for process in self.processes:
            process.join()


def measure(k: int, text: str) -> dict[str, Any]:
    """One row: all contenders in turn over several rounds.

    The ratio is the median over the rounds, since the speed of a shared machine drifts from round to round.
    """
    plain, ranks = alone(k, text), {world_size: Ranks(world_size, k, text) for world_size in RANKS}
    alone_seconds: list[float] = []
    seconds: dict[int, list[float]] = {world_size: [] for world_size in RANKS}
    for _ in range(ROUNDS[k]):
        alone_seconds.append(plain())
        for world_size, group in ranks.items():
            seconds[world_size].append(group.turn())
    rows = []
    for world_size, group in ranks.items():
        group.end()
        ratios = [one / whole for one, whole in zip(seconds[world_size], alone_seconds, strict=True)]
        rows.append(
            {
                "ranks": world_size,
                "sent_bytes_per_rank": group.sent_bytes,
                "ratio": statistics.median(ratios),
                "ratio_of_each_round": ratios,
                "seconds": min(seconds[world_size]),
            }
        )
    return {"objective": text, "n": N, "d": D, "k": k, "alone_seconds": min(alone_seconds), "sharded": rows}


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """Plot the time relative to one process against the number of ranks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.5))
    for row in rows:
        points = row["sharded"]
        label = f"{row['objective']}, k = {row['k']:,}"
        axes.plot([p["ranks"] for p in points], [p["ratio"] for p in points], "o-", label=label)
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set(xlabel="ranks on two cores", ylabel="time / one process", xticks=RANKS, ylim=(0, None))
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=150)


def table(rows: list[dict[str, Any]]) -> str:
    """Time relative to one process, and bytes sent, one line per objective and number of classes."""
    ranks = [found["ranks"] for found in rows[0]["sharded"]]
    titles = [f"{number} rank{'s' * (number > 1)}" for number in ranks]
    lines = [
        f"| | k | {' | '.join(titles)} | sent by each of 2 |",
        "|---" * (len(ranks) + 3) + "|",
    ]
    for row in rows:
        by_ranks = {found["ranks"]: found for found in row["sharded"]}
        ratios = " | ".join(f"{by_ranks[number]['ratio']:.2f}" for number in ranks)
        sent = by_ranks[2]["sent_bytes_per_rank"] / 2**20
        lines.append(f"| `{row['objective']}` | {row['k']:,} | {ratios} | {sent:.2f} MiB |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    """Measure everything and write the record, or fill in the table from the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded", description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, metavar="PAGE", help="Fill in the table; run nothing.")
    page = parser.parse_args(arguments).table
    if page is not None:
        fill(page, "sharded", table(json.loads(RESULTS.read_text())["rows"]))
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    start = time.perf_counter()
    rows = [measure(k, text) for k in ROUNDS for text in OBJECTIVES]
    write_record(RESULTS, {"rows": rows} | stamp(seconds=time.perf_counter() - start))
    plot(rows, RESULTS.with_suffix(".png"))
    print(table(rows))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Side-by-side timing and peak memory: ratios within one run rather than absolute seconds."""

import gc
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch


def side_by_side(
    contenders: dict[str, Callable[[], object]], *, rounds: int = 5, steps: int = 1, device: str = "cpu"
) -> dict[str, float]:
    """Shortest time of a step of each contender. They take turns, so that other load affects all alike.

    A turn has `steps` steps. With one, a step of a few milliseconds starts with the caches and sleeping
    threads that another contender left, which does not happen in training.
    """
    best = dict.fromkeys(contenders, float("inf"))
    for run in contenders.values():
        run()
    for _ in range(rounds):
        for name, run in contenders.items():
            best[name] = min(best[name], seconds_of(partial(repeat, run, steps), device) / steps)
    return best


def repeat(run: Callable[[], object], times: int) -> None:
    """Call `run` several times."""
    for _ in range(times):
        run()


def seconds_of(run: Callable[[], object], device: str = "cpu") -> float:
    """Seconds that `run` takes; on a CUDA device measured by events, from the first kernel to the last."""
    if device == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def peak_bytes(run: Callable[[], object], *, warm: bool = True, device: str = "cpu") -> int:
    """Peak memory while `run` is executed, above the current level: resident (Linux) or allocated (CUDA).

    With `warm`, `run` is called once before, so that memory it keeps is not counted.
    """
    if warm:
        run()
    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - allocated
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}; memory is measured on Linux only.")

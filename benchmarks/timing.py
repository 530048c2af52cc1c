"""Side-by-side timing and peak memory: ratios of one run, not bare seconds."""

import gc
import time
from collections.abc import Callable
from pathlib import Path


def side_by_side(contenders: dict[str, Callable[[], object]], *, rounds: int = 5) -> dict[str, float]:
    """Best seconds of each contender; they take turns, so that a busy moment hits all alike."""
    best = dict.fromkeys(contenders, float("inf"))
    for run in contenders.values():
        run()
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def peak_bytes(run: Callable[[], object], *, warm: bool = True) -> int:
    """How far the resident memory of this process rises above its present level while `run` works (Linux).

    It runs once before, unless it is not to be `warm`, so that what stays behind does not count.
    """
    if warm:
        run()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}; memory is measured on Linux only.")

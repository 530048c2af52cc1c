"""The last lines about a finished run: what it achieved, and what to try next."""

import math
import shlex
from typing import Any

from tammes.lab.models.packaged_weights import HOW_TO_INSTALL
from tammes.lab.training.monitor import Record, read_log
from tammes.lab.training.progress import SHARES, could_be_fine_tuned, margin_in_words
from tammes.lab.training.run_folder import RunFolder

RARE_GAP = 0.1
"""Accuracy gap between frequent and rare classes from which rebalancing is suggested."""
LOST = 0.01
"""Drop in accuracy since the best epoch from which that epoch is suggested."""
GAINED = 0.005
"""Gain in accuracy at the last evaluation from which longer training is suggested."""


def closing_lines(folder: RunFolder) -> list[str]:
    """What a finished run achieved, and the next thing to try."""
    result = folder.finished()
    metrics = result["metrics"]
    name = next(name for name in SHARES if name in metrics)
    reached = f"Test {SHARES[name]} {100 * metrics[name]:.1f} %, {margin_in_words(metrics)}."
    return [reached, f"Next: {_next(folder, result, name)}"]


def _next(folder: RunFolder, result: dict[str, Any], name: str) -> str:
    metrics, config = result["metrics"], folder.config
    if could_be_fine_tuned(config):
        return f"install pretrained weights, {HOW_TO_INSTALL}, and train again."
    if _neglects_rare_classes(metrics) and config.sampling == "shuffled":
        return "rare classes have low accuracy; train again with --sampling balanced."
    best, epoch = result["best"].get(name, 0.0), result["best"]["epoch"]
    noise = _noise(folder, metrics[name])
    if best - metrics[name] > max(LOST, noise):
        return f"epoch {epoch} reached {100 * best:.1f} %; use it with --weights best, or train for less."
    if config.epochs is not None and _still_rising(read_log(folder.log), name, noise):
        return f"accuracy was still improving; train longer with --epochs {2 * config.epochs}."
    what = "its mistakes" if metrics[name] < 1 else "the page"
    return f"see {what} with tammes report {shlex.quote(str(folder.path))}"


def _neglects_rare_classes(metrics: dict[str, Any]) -> bool:
    groups = [metrics[group] for group in ("many", "medium", "few") if group in metrics]
    return len(groups) > 1 and groups[0] - groups[-1] > RARE_GAP


def _noise(folder: RunFolder, share: float) -> float:
    """Two standard errors of a share of the test images."""
    images = len(folder.arrays.get("label", ()))
    return 2 * math.sqrt(share * (1 - share) / images) if images else 0.0


def _still_rising(records: list[Record], name: str, noise: float) -> bool:
    values = [record[name] for record in records if record["kind"] == "epoch" and name in record]
    return len(values) > 2 and values[-1] == max(values) and values[-1] - values[-2] > max(GAINED, noise)

"""Provenance of results: commit, command, versions, machine, date and time; and atomic writing of records."""

import functools
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tammes._common import files

PACKAGES = (
    "tammes",
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "scipy",
    "scikit-learn",
    "pytorch-metric-learning",
)


def stamp(*, seconds: float, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What a reader needs, besides config and seeds, to judge a number."""
    return {
        "commit": commit(),
        "command": command(),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "machine": machine(torch.device(device)),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
    }


@functools.cache
def commit() -> str | None:
    """The git commit of this source, "+dirty" if files other than results differ; None outside a checkout.

    The first call decides, so a long run should make it when it starts.
    """
    folder = Path(__file__).parent
    if _git(folder, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # installed into some other project's tree
    elsewhere = ("--", ":/", ":(exclude,top)results")  # files that a benchmark has just written are not code
    head, changes = (
        _git(folder, "rev-parse", "HEAD"),
        _git(folder, "status", "--porcelain", "-uno", *elsewhere),
    )
    return f"{head}+dirty" if changes else head


def _git(folder: Path, *words: str) -> str | None:
    try:
        run = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()


def command() -> str:
    """The current command line. Absolute paths lose their directory, because folders can name people."""
    return shlex.join(map(_without_folders, sys.argv))


def _without_folders(word: str) -> str:
    """
    >>> _without_folders("--data-root=/home/ada/data"), _without_folders("runs/ada")
    ('--data-root=data', 'runs/ada')
    """
    option, sign, value = word.rpartition("=")
    return f"{option}{sign}{Path(value).name if Path(value).is_absolute() else value}"


def version(package: str) -> str | None:
    """Version of an installed package, None where it is missing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine(device: torch.device) -> dict[str, Any]:
    """System, processor, cores, threads and device; no names of hosts or people."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def processor() -> str:
    """The processor's name; Linux keeps it in a file."""
    described = Path("/proc/cpuinfo")
    if described.is_file():
        for line in described.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def write_record(path: Path, content: Any) -> None:
    """Write a record of results to `path` as JSON; NaN raises."""
    files.write_json(path, content, indent=1, allow_nan=False)

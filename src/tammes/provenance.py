"""Where a number comes from: versions, machine, date, wall time; and results written whole or not at all."""

import importlib.metadata
import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

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
    """What has to be known, besides config and seeds, to judge a number."""
    return {
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "machine": machine(torch.device(device)),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
    }


def version(package: str) -> str | None:
    """Version of an installed package, None where it is missing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine(device: torch.device) -> dict[str, Any]:
    """System, processor, cores, threads and the device in use; no names of hosts or people."""
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


def write_json(path: Path, content: Any) -> None:
    """`content` as JSON at `path`."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """`text` at `path`, by way of a temporary file and a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

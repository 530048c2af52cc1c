"""One run to one JSON: config, versions, machine, date, wall time, numbers."""

import dataclasses
import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tammes.training.config import Config

PACKAGES = ("tammes", "torch", "torchvision", "timm", "numpy", "scikit-learn")


def record(config: Config, device: torch.device, *, processes: int, seconds: float) -> dict[str, Any]:
    """What has to be known to run this again and to judge its numbers."""
    return {
        "config": dataclasses.asdict(config),
        "seed": config.seed,
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "machine": machine(device) | {"processes": processes},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine(device: torch.device) -> dict[str, Any]:
    """System, processor, cores, threads and the device in use; no names of hosts or people."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def _processor() -> str:
    """The processor's name; Linux keeps it in a file."""
    described = Path("/proc/cpuinfo")
    if described.is_file():
        for line in described.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()

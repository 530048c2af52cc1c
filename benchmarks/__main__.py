"""`make bench`: every benchmark, one after the other; results and plots go to results/.

The training benchmarks need MNIST/raw, or flowers and gtsrb, in the folder TAMMES_DATA. Without it they are
skipped with a message.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    evaluation,
    faces,
    head,
    packing,
    people,
    photos,
    photos_memory,
    r_w,
    retrieval,
    sampled,
    sharded,
    train,
)


def train_on_mnist() -> None:
    root = Path(os.environ.get("TAMMES_DATA", "data"))
    if (root / "MNIST" / "raw").is_dir():
        train.main(str(root))
    else:
        print(
            f"benchmarks.train is left out: there is no {root}/MNIST/raw. Set TAMMES_DATA.", file=sys.stderr
        )


def train_on_photos() -> None:
    root = Path(os.environ.get("TAMMES_DATA", "data"))
    there = [name for name in photos.SETS if (root / name).is_dir()]
    if not there:
        print(f"benchmarks.photos is left out: {root} has no {' or '.join(photos.SETS)}.", file=sys.stderr)
    for name in there:
        for contender in photos.CONTENDERS:
            photos.main(["--data", str(root), "--set", name, "--contender", contender])


def memory_on_photos() -> None:
    root = Path(os.environ.get("TAMMES_DATA", "data")) / "flowers"
    if root.is_dir() and sys.platform == "linux":
        photos_memory.main([str(root)])
    else:
        print(f"benchmarks.photos_memory is left out: it needs {root} and Linux.", file=sys.stderr)


BENCHMARKS: dict[str, Callable[[], None]] = {
    "evaluation": evaluation.main,
    "faces": faces.main,
    "head": lambda: head.main([]),
    "packing": lambda: packing.main([]),
    "r_w": r_w.main,
    "sampled": sampled.main,
    "sharded": lambda: sharded.main([]),
    "retrieval": retrieval.main,
    "people": people.main,
    "train": train_on_mnist,
    "photos": train_on_photos,
    "photos_memory": memory_on_photos,
}

if __name__ == "__main__":
    for run in BENCHMARKS.values():
        run()

"""The photos of benchmarks/photos.py: subsets of two public sets, small enough to compare on two cores.

- flowers: github 3ba2ii/Flower-Classifier, all 102 classes. The first 10 images of each class of its train
  folder, as many as the set's authors train on, and its whole test folder.
- gtsrb: github hergerr/traffic-sign-recognition, all 43 classes, imbalanced 11 : 1. The last frame of each
  of the 1,307 tracks of the training images, and every sixth test image.

Run: python -m benchmarks.photos --data DIR --copy-from CHECKOUT
"""

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path

FLOWERS_PER_CLASS = 10
TEST_SIGN_STEP = 6


def flowers(checkout: Path) -> Iterator[tuple[Path, str]]:
    """The images of the subset, each with its place in the new folder."""
    for split, most in (("train", FLOWERS_PER_CLASS), ("test", None)):
        for folder in sorted(p for p in (checkout / "flowers" / split).iterdir() if p.is_dir()):
            for image in sorted(folder.glob("*.jpg"))[:most]:
                yield image, f"{split}/{folder.name}/{image.name}"


def gtsrb(checkout: Path) -> Iterator[tuple[Path, str]]:
    """The images of the subset, each with its place in the new folder."""
    root = checkout / "GTSRB"
    for folder in sorted(p for p in (root / "Final_Training" / "Images").iterdir() if p.is_dir()):
        tracks = {image.name.split("_")[0]: image for image in sorted(folder.glob("*.ppm"))}
        for image in tracks.values():
            yield image, f"train/{folder.name}/{image.name}"
    with (root / "Final_Test" / "GT-final_test.csv").open(newline="") as file:
        rows = sorted(csv.DictReader(file, delimiter=";"), key=lambda row: row["Filename"])
    for row in rows[::TEST_SIGN_STEP]:
        name = row["Filename"]
        yield root / "Final_Test" / "Images" / name, f"test/{int(row['ClassId']):05d}/{name}"


def copy_subsets(checkout: Path, data: Path) -> None:
    """Copy the subsets from `checkout` to `data`."""
    for name, (marker, choose) in {"flowers": ("flowers", flowers), "gtsrb": ("GTSRB", gtsrb)}.items():
        if not (checkout / marker).is_dir():
            continue
        images = list(choose(checkout))
        for source, place in images:
            target = data / name / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        print(f"{data / name}: {len(images)} images")

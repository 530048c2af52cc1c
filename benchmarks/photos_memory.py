"""Peak memory of `tammes train` on folders of photos: it must not grow with the number of photos.

Trains one epoch on an even sample of a folder and on all of it, with the defaults of photos, and sums up the
memory of the command and its loader processes (proportional set size, so that shared pages count once).
The record is of the flowers of benchmarks/photos_data.py: all 8,189 of them, and 720.

Run: python -m benchmarks.photos_memory PHOTOS        (into results/bench_photos_memory.json; Linux only)
     python -m benchmarks.photos_memory --table docs/photos.md
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tammes.lab.data.image_folders import IMAGE_SUFFIXES
from tammes.lab.record_stamp import commit, stamp, write_record
from tammes.lab.report.tables import Cell, Grid, fill, to_markdown

RESULTS = Path("results/bench_photos_memory.json")
SAMPLE = 720
EVERY = 0.05
WAYS = {"pretrained": [], "from scratch": ["--from-scratch"]}


def sample(photos: Path, count: int, target: Path) -> None:
    """Link an even sample of about `count` photos below `target`, in the same layout."""
    files = sorted(path for path in photos.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    for path in files[:: max(1, len(files) // count)]:
        link = target / path.relative_to(photos)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)


def peak(command: list[str]) -> float:
    """The largest memory of a command and its child processes, in MB."""
    most = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, sum(map(_kilobytes, _family(process.pid))))
            time.sleep(EVERY)
    if process.returncode:
        raise SystemExit(f"{command} failed.")
    return most / 1000


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        text = " ".join(Path(f"/proc/{pid}/task/{task}/children").read_text() for task in tasks)
    except OSError:  # it has ended
        return []
    return [pid, *(inner for child in text.split() for inner in _family(int(child)))]


def _kilobytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def measure(photos: Path) -> list[dict[str, Any]]:
    """Peak memory of one epoch for each way to train, on a sample and on all photos."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for count in (SAMPLE, sys.maxsize):
            folder = Path(scratch) / f"photos-{count}"
            sample(photos, count, folder)
            number = sum(path.is_symlink() for path in folder.rglob("*"))
            for way, flags in WAYS.items():
                words = ["train", str(folder), "--epochs", "1", "--out", f"{scratch}/{way}-{count}", *flags]
                megabytes = round(peak([sys.executable, "-m", "tammes", *words]))
                rows.append({"photos": number, "way": way, "peak_mb": megabytes})
                print(rows[-1], flush=True)
    return rows


def table() -> str:
    """The record as Markdown."""
    rows = json.loads(RESULTS.read_text())["rows"]
    counts = sorted({row["photos"] for row in rows})
    peaks = {(row["way"], row["photos"]): f"{row['peak_mb'] / 1000:.2f}" for row in rows}
    lines = [[Cell(way), *(Cell(peaks[way, count]) for count in counts)] for way in WAYS]
    columns = ("peak memory, GB", *(f"{count:,} photos" for count in counts))
    return to_markdown(Grid("", columns, [("", lines)]))


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("photos", type=Path, nargs="?", help="Folder of photos.")
    parser.add_argument("--table", type=Path, help="Markdown page to fill with the record.")
    chosen = parser.parse_args(words)
    if chosen.table:
        fill(chosen.table, "photos-memory", table())
        return
    if chosen.photos is None:
        parser.error("Give a folder of photos, or --table.")
    commit()
    start = time.monotonic()
    rows = measure(chosen.photos.resolve())
    write_record(RESULTS, {"rows": rows, "stamp": stamp(seconds=time.monotonic() - start)})


if __name__ == "__main__":
    main()

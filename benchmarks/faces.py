"""Face data: records read per second on one core, and a synthetic evaluation of the size of IJB-C.

Run: python -m benchmarks.faces       (into results/bench_faces.json; 2 GB of memory and 0.2 GB of disk)
"""

import io
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.timing import peak_bytes
from tammes.lab.data.insightface_records import RecordFile, read_index, records, write_records
from tammes.lab.record_stamp import stamp, write_record
from tammes.metrics.ijb_templates import pair_scores, template_features, template_rows
from tammes.metrics.verification import verify

RESULTS = Path("results/bench_faces.json")
RECORDS, SIDE = 20_000, 112
IMAGES, TEMPLATES, PAIRS, SAME, D = 469_375, 23_124, 15_658_489, 19_557, 512
"""Images, templates and pairs of IJB-C's 1:1 protocol."""


def photograph(random: np.random.Generator) -> bytes:
    """A smooth image with some noise; its JPEG file (112 x 112) is about as large as that of a face."""
    coarse = Image.fromarray(random.integers(0, 255, (14, 14, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.int16)
    noisy = np.clip(smooth + random.integers(-8, 8, smooth.shape), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noisy).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def reading() -> dict[str, Any]:
    """Records in random order on one core: bytes alone, decoded, and the time to open the set."""
    random = np.random.default_rng(0)
    photographs = [photograph(random) for _ in range(200)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "rec"
        write_records(folder, ((i // 10, photographs[i % 200]) for i in range(RECORDS)), (SIDE, SIDE))
        _, starts = read_index(folder / "train.idx")
        order = random.permutation(starts[1:]).tolist()
        file = RecordFile(folder / "train.rec")
        bytes_alone = _rate(file.unpack, order)
        opened = time.perf_counter()
        split = records(folder).train
        opened = time.perf_counter() - opened
        decoded = _rate(split.read, range(min(2000, len(split))))
    return {
        "records": RECORDS,
        "mean_bytes": round(float(np.mean([len(photo) for photo in photographs]))),
        "records_per_second": round(bytes_alone),
        "decoded_per_second": round(decoded),
        "open_seconds": round(opened, 2),
    }


def _rate(read: Any, what: Any) -> float:
    start = time.perf_counter()
    for one in what:
        read(one)
    return len(what) / (time.perf_counter() - start)


def ijbc() -> dict[str, Any]:
    """From images to templates, scores and rates, at the size of IJB-C; `peak_mib` excludes the input."""
    random = np.random.default_rng(0)
    times: dict[str, float] = {}
    found: dict[str, Any] = {}
    template, embeddings = _made(random)
    medium = random.integers(0, 10, IMAGES)
    first, second, same = _pairs(random)

    def run() -> None:
        start = time.perf_counter()
        names, features = template_features(embeddings, template, medium)
        times["templates"] = time.perf_counter() - start
        scores = pair_scores(features, template_rows(names, first), template_rows(names, second))
        times["scores"] = time.perf_counter() - start - times["templates"]
        found.update(verify(scores, same).numbers())
        times["all"] = time.perf_counter() - start

    peak = peak_bytes(run, warm=False)
    return {
        "images": IMAGES,
        "templates": TEMPLATES,
        "pairs": PAIRS,
        "d": D,
        "seconds": {name: round(seconds, 1) for name, seconds in times.items()},
        "peak_mib": round(peak / 2**20),
        "embeddings_mib": round(IMAGES * D * 4 / 2**20),
        "numbers": found,
    }


def _made(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The template of every image, and its embedding, near its person's. Each person has two templates."""
    people = random.standard_normal((TEMPLATES // 2, D), dtype=np.float32)
    template = np.sort(
        np.concatenate([np.arange(TEMPLATES), random.integers(0, TEMPLATES, IMAGES - TEMPLATES)])
    )
    embeddings = np.empty((IMAGES, D), np.float32)
    for some in np.array_split(np.arange(IMAGES), 50):
        noise = random.standard_normal((len(some), D), dtype=np.float32)
        embeddings[some] = people[template[some] // 2] + 12 * noise
    return template, embeddings


def _pairs(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Templates 2i and 2i + 1 belong to the same person."""
    same = np.zeros(PAIRS, bool)
    same[random.choice(PAIRS, SAME, replace=False)] = True
    first = random.integers(0, TEMPLATES - 2, PAIRS)
    second = np.where(same, first ^ 1, (first + random.integers(2, TEMPLATES - 2, PAIRS)) % TEMPLATES)
    return first, second, same


def main() -> None:
    """Run both parts and write the results file."""
    start = time.perf_counter()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"config": {"seed": 0, "threads": 1}, "reading": reading()}
    print(found["reading"], flush=True)
    found["ijbc"] = ijbc()
    print(found["ijbc"], flush=True)
    write_record(RESULTS, found | stamp(seconds=time.perf_counter() - start))


if __name__ == "__main__":
    main()

"""Reads damaged copies of every kind of file, in a process of its own; `test_damaged_files.py` judges.

Run: python damage.py FOLDER      (prints a line of JSON for each reader)
"""

import io
import json
import math
import pickle
import re
import resource
import shutil
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

SEED = 7
HUGE = (0, -1, 10**9, 10**30, "1e308", "NaN", "null", '"a"', "[]", "{}", "[[[[[[", "true")


@dataclass
class Reader:
    """Reads the file `path`; its damaged copy takes its place.

    An error must name the file, its folder or `told`.
    """

    path: Path
    read: Callable[[], object]
    count: int = 200
    told: str = ""


def mutations(content: bytes, count: int, rng: np.random.Generator) -> Iterator[bytes]:
    """Truncations, flipped bits, swapped and overwritten bytes, replaced numbers."""
    numbers = [match.span() for match in re.finditer(rb"-?[0-9][0-9.e+-]*", content)]
    n = len(content)
    for i in range(count):
        damaged, kind, at = bytearray(content), i % 5, int(rng.integers(n))
        if kind == 0:
            damaged = damaged[:at]
        elif kind == 1:
            for place in rng.integers(n, size=int(rng.integers(1, 5))):
                damaged[place] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            other = int(rng.integers(n))
            damaged[at], damaged[other] = damaged[other], damaged[at]
        elif kind == 3:
            width = int(rng.choice([1, 2, 4, 8]))
            damaged[at : at + width] = bytes([int(rng.choice([0, 0x7F, 0xFF]))]) * width
        elif numbers:
            start, end = numbers[int(rng.integers(len(numbers)))]
            damaged[start:end] = str(HUGE[int(rng.integers(len(HUGE)))]).encode()
        yield bytes(damaged)


def walk(reader: Reader) -> dict[str, object]:
    """What went wrong with any of the damaged copies."""
    content, rng = reader.path.read_bytes(), np.random.default_rng(SEED)
    complaints, slowest, read = [], 0.0, 0
    reader.read()  # undamaged it must pass
    for number, damaged in enumerate(mutations(content, reader.count, rng)):
        reader.path.write_bytes(damaged)
        start = time.perf_counter()
        try:
            reader.read()
            read += 1
        except (ValueError, OSError) as error:
            names = (reader.path.name, reader.path.parent.name, reader.told)
            named = any(name and name in str(error) for name in names)
            if not named or "This is a bug" in str(error):
                complaints.append(f"{number}: {type(error).__name__}: {error} {where()}")
        except Exception as error:
            complaints.append(f"{number}: {type(error).__name__}: {error} {where()}")
        slowest = max(slowest, time.perf_counter() - start)
    reader.path.write_bytes(content)
    return {"complaints": complaints, "slowest": slowest, "read": read, "count": reader.count}


def where() -> str:
    frames = traceback.extract_tb(sys.exc_info()[2])
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-1:-4:-1])


def encoded(form: str) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def picture(path: Path) -> None:
    from tammes.lab.data.images import try_read

    found = try_read(str(path), (8, 8))
    if isinstance(found, str):
        raise ValueError(f"{path}: {found}")


def data_readers(folder: Path) -> Iterator[tuple[str, Reader]]:
    from tammes.lab.data.identities import csv_shots
    from tammes.lab.data.ijb_lists import read_ijb
    from tammes.lab.data.insightface_records import write_records
    from tammes.lab.data.loading import load
    from tammes.lab.data.pairs import read_pairs
    from tammes.lab.inference.embeddings import read_embeddings

    rng = np.random.default_rng(0)
    for form in ("png", "jpeg", "gif", "webp", "tiff", "bmp", "ppm"):
        path = folder / f"x.{form}"
        path.write_bytes(encoded(form))
        yield form, Reader(path, lambda path=path: picture(path))
    images, labels = rng.integers(0, 256, (12, 8, 8), dtype=np.uint8), np.arange(12) % 3
    np.savez(folder / "set.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    yield "npz", Reader(folder / "set.npz", lambda: load(folder / "set.npz"))
    np.savez_compressed(
        folder / "e.npz", files=np.array(["a/1.png", "b/2.png"]), embeddings=rng.normal(size=(2, 4))
    )
    yield "embeddings", Reader(folder / "e.npz", lambda: read_embeddings(folder / "e.npz"))

    for name in ("Ann", "Eve"):
        (folder / "people" / name).mkdir(parents=True)
        for i in (1, 2, 3):
            (folder / "people" / name / f"{name}_{i:04d}.png").write_bytes(encoded("png"))
    lists = {
        "pairs.txt": "2\nAnn\t1\t2\nEve\t1\t2\nAnn\t1\tEve\t3\nAnn\t2\tEve\t1\n",
        "pairs.csv": "first,second,same,fold\nAnn/Ann_0001.png,Eve/Eve_0001.png,0,1\n"
        "Ann/Ann_0001.png,Ann/Ann_0002.png,1,2\n",
    }
    for name, text in lists.items():
        path = folder / "people" / name
        path.write_text(text)
        yield name, Reader(path, lambda path=path: read_pairs(path))
    path = folder / "lfw.bin"
    path.write_bytes(pickle.dumps(([encoded("png")[:90], b"b", b"c", b"d"], [True, False]), 4))
    yield "pairs.bin", Reader(folder / "lfw.bin", lambda: read_pairs(folder / "lfw.bin"))

    rows = [
        f"Ann/Ann_000{i}.png,{i % 2},{i % 3},{role}"
        for i, role in enumerate(("train", "query", "gallery"), 1)
    ]
    (folder / "people" / "shots.csv").write_text("\n".join(["file,pid,camera,role", *rows]) + "\n")
    yield (
        "shots.csv",
        Reader(folder / "people" / "shots.csv", lambda: csv_shots(folder / "people" / "shots.csv")),
    )
    files = [f"{name}/{name}_{i:04d}.png" for name in ("Ann", "Eve") for i in (1, 2, 3)]
    lines = "".join(f"{file} {i // 3}\n" for i, file in enumerate(files))
    for kind in ("train", "test"):
        (folder / f"list_{kind}.txt").write_text(lines)
    read = lambda: load(folder / "list_train.txt", root=folder / "people")  # noqa: E731
    yield "list", Reader(folder / "list_train.txt", read)

    write_records(folder / "rec", [(label, encoded("png")) for label in (0, 0, 0, 1, 1, 1)], (8, 8))
    for name in ("property", "train.idx", "train.rec"):
        yield name, Reader(folder / "rec" / name, lambda: load(folder / "rec"))
    for part in ("train", "t10k"):
        for kind, sizes in (("images-idx3", (12, 28, 28)), ("labels-idx1", (12,))):
            path = folder / "MNIST" / "raw" / f"{part}-{kind}-ubyte"
            path.parent.mkdir(parents=True, exist_ok=True)
            head = struct.pack(f">{1 + len(sizes)}I", 2048 + len(sizes), *sizes)
            path.write_bytes(head + (np.arange(math.prod(sizes)) % 10).astype(np.uint8).tobytes())
    for kind in ("images-idx3", "labels-idx1"):
        path = folder / "MNIST" / "raw" / f"train-{kind}-ubyte"
        yield f"mnist {kind}", Reader(path, lambda: load("mnist", root=folder), 60, told="mnist")
    (folder / "IJBC" / "loose_crop").mkdir(parents=True)
    (folder / "IJBC" / "ijbc_face_tid_mid.txt").write_text("1.jpg 7 100\n2.jpg 7 101\n3.jpg 9 101\n")
    (folder / "IJBC" / "ijbc_template_pair_label.txt").write_text("7 9 0\n9 9 1\n")
    for name in ("ijbc_face_tid_mid.txt", "ijbc_template_pair_label.txt"):
        yield name, Reader(folder / "IJBC" / name, lambda: read_ijb(folder / "IJBC"))


def run_readers(folder: Path) -> Iterator[tuple[str, Reader]]:
    """The files of a trained run, which was verified on pairs."""
    from tammes.lab.cli.reported_models import finished_models, stored
    from tammes.lab.report import sample_map, write_page
    from tammes.lab.training.config import Config, read_resolved
    from tammes.lab.training.face_verification import known_curve
    from tammes.lab.training.loop import train
    from tammes.lab.training.run_folder import RunFolder, read_state

    sample_map.project = lambda points: points[:, :2]  # t-SNE takes seconds
    rng = np.random.default_rng(1)
    images, labels = rng.integers(0, 256, (24, 16, 16, 3), dtype=np.uint8), np.arange(24) % 3
    np.savez(folder / "colors.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    config = Config(data=str(folder / "colors.npz"), model="cnn4", embedding=4, epochs=1, batch_size=8)
    train(config, folder / "run")
    run = RunFolder(folder / "run")
    (folder / "run" / "verification").mkdir()
    scores = {"scores": rng.normal(size=20).astype(np.float32), "same": np.arange(20) % 2 == 0}
    scores |= {
        "threshold": np.array(0.1),
        "mistake_pictures": rng.integers(0, 255, (1, 2, 4, 4, 3), dtype=np.uint8),
    }
    scores |= {
        "mistake_names": np.array([["a", "b"]]),
        "mistake_scores": np.zeros(1),
        "mistake_same": np.ones(1, bool),
    }
    np.savez_compressed(folder / "run" / "verification" / "lfw.npz", **scores)

    def page() -> None:
        write_page(finished_models([run.path]), folder / "page.html")

    yield "config.json", Reader(run.path / "config.json", lambda: read_resolved(run.path / "config.json"))
    yield "config.json, used", Reader(run.path / "config.json", run.classifier, 100)
    yield "data.json", Reader(run.path / "data.json", run.classifier, 150)
    checkpoint = run.checkpoint()
    assert checkpoint is not None
    yield "weights", Reader(checkpoint / "weights.safetensors", run.classifier, 150)
    yield "best", Reader(run.path / "best.safetensors", lambda: run.classifier("best"), 100)
    yield "result.json", Reader(run.path / "result.json", page, 200)
    yield "margins.npz", Reader(run.path / "margins.npz", page, 150)
    yield "verification", Reader(run.path / "verification" / "lfw.npz", page, 100)
    yield "verification, used", Reader(run.path / "verification" / "lfw.npz", lambda: known_curve(run), 100)
    arrays = {"embeddings": rng.normal(size=(30, 6)), "labels": np.arange(30) % 3}
    arrays |= {"prototypes": rng.normal(size=(3, 6)), "classes": np.array(["a", "b", "c"])}
    np.savez(folder / "model.npz", **arrays)
    inspected = lambda: write_page([stored(folder / "model.npz")], folder / "page.html")  # noqa: E731
    yield "inspected", Reader(folder / "model.npz", inspected, 150)
    state = checkpoint / "state.pt"
    yield "state.pt", Reader(state, lambda: read_state(state), 150)
    yield "log.jsonl", Reader(run.path / "log.jsonl", page, 100)


def record_readers(folder: Path) -> Iterator[tuple[str, Reader]]:
    """What `tammes reproduce` reads."""
    from tammes.lab.recipes import claims, limits, toy
    from tammes.lab.recipes.row_records import read_rows
    from tammes.lab.recipes.table import Row
    from tammes.lab.report import minority_figure, training_figures
    from tammes.lab.report.tables import Column, beside, fill, to_markdown
    from tammes.lab.training.config import Config, resolve

    for module in (training_figures, minority_figure):
        module.save_figure = lambda *_, **__: None  # which takes most of the time
    rows = [Row(key=key, label=key, config=Config(data="x.npz", seed=i)) for i, key in enumerate("ab")]
    measures = {"accuracy": 0.5, "class_margin_deg": 90.5, "class_margin_maximum_deg": 120.0}
    measures |= {"sample_margin": 0.2, "sample_margin_ceiling": 1.5}
    curves = {name: [value, value] for name, value in measures.items()}
    curves |= {"epoch": [0, 1], "largest_norm": [2.5, None], "smallest_norm": [0.5, 0.5]}
    bars = {"low": -0.5, "width": 0.01, "counts": [1, 0, 7]}
    for row in rows:
        record = {"metrics": measures, "seed": row.config.seed, "curves": curves}
        record |= {"histograms": {"similarity": bars, "sample_margin": bars}}
        record |= {"config": resolve(row.config).settings()}
        (folder / f"{row.key}.json").write_text(json.dumps(record))

    def shown() -> None:
        records = read_rows(rows, folder)
        to_markdown(beside("", rows, records, [Column("", name) for name in measures], ()))
        effects = claims.effects([(("a",), ("b",))], records, claims.ACCURACY)
        claims.judge([*effects, 1.0, 1.5], 1)
        training_figures.draw_measures(records, "", folder / "x.png")
        training_figures.draw_norm_ratios(records, "", folder / "x.png")
        with_bars = {key: record for key, record in records.items() if record["histograms"]}
        training_figures.draw_histograms(with_bars, "", folder / "x.png")

    yield "record of a row", Reader(folder / "a.json", shown, 150)

    points = toy.Configuration(torch.randn(8, 3), torch.randn(8, 3), torch.arange(8), [90.5])
    numbers = dict.fromkeys(("class_margin", "share", "gamma_min", "mean_margin", "seconds"), 0.5)
    result = toy.ToyResult(k=8, d=3, loss="CosFace", objective="", method="SGD", printed=None, **numbers)
    (folder / "toy").mkdir()
    kept = folder / "toy" / "cosface-3-seed0.json"
    kept.write_text(json.dumps(toy.to_record(result, points)))

    def drawn() -> None:
        row, found = toy.trained("CosFace", epochs=3, seed=0, out=str(folder))
        toy._grid([row])
        toy._panel(f"{row.loss} {row.class_margin:.2f}", found)

    yield "toy", Reader(kept, drawn, 150)
    optimum = {
        "loss": "CE",
        "ratio": 10,
        "R_w": False,
        "rare_deg": 60.5,
        "rare_means_deg": 70.5,
        "merged": [],
        "gradient": 1e-9,
    }
    kept = folder / "limits.json"
    kept.write_text(json.dumps({"minority": {"CE 10 False": optimum}, "losses": {}}))
    yield "limits", Reader(kept, lambda: limits.reproduce_limits(parts=(), out=str(folder)), 100)
    page = folder / "page.md"
    page.write_text("# Page\n<!-- t -->\n<!-- end t -->\n")

    def filled() -> None:
        fill(page, "t", "")

    yield "page", Reader(page, filled, 60)


def head_readers(folder: Path) -> Iterator[tuple[str, Reader]]:
    """Prototypes from elsewhere."""
    import timm
    from safetensors.torch import save_file

    from tammes import PrototypeHead, load_head, save_head
    from tammes.geometry.coordinates import read_points, write_points
    from tammes.heads.interop import import_head
    from tammes.lab.adapters import MarginClassifier
    from tammes.lab.data.text_files import read_lines
    from tammes.lab.models import build

    weight = torch.randn(5, 4)
    save_file({"weight": weight}, folder / "head.safetensors")
    torch.save({"weight": weight}, folder / "head.pt")
    np.savez(folder / "head.npz", weight=weight.numpy())

    def read(path: Path) -> None:
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
        import_head([path], folder / "checkpoint")

    for form in ("safetensors", "pt", "npz"):
        path = folder / f"head.{form}"
        yield path.name, Reader(path, lambda path=path: read(path), 100)
    save_head(folder / "saved", PrototypeHead(4, 5, "CE"), classes=list("abcde"))
    for path in sorted((folder / "saved").iterdir()):
        loaded = lambda: load_head(folder / "saved", PrototypeHead(4, 5, "CE"))  # noqa: E731
        yield f"saved {path.suffix}", Reader(path, loaded, 60)
    for path in (folder / "points.npy", folder / "points.txt"):
        write_points(path, weight.double())
        yield path.name, Reader(path, lambda path=path: read_points(path, 5, 4), 100)
    names = folder / "names.txt"
    names.write_text("Ann\nBéa\nCid\nDan\nEve\n", encoding="utf-8")

    yield "names", Reader(names, lambda: read_lines(names), 60)
    net = timm.create_model("test_resnet", num_classes=0)
    save_file(net.state_dict(), folder / "net.safetensors")
    made = lambda: build(  # noqa: E731
        "timm/test_resnet", in_channels=3, image_size=32, pretrained=str(folder / "net.safetensors")
    )
    yield "pretrained", Reader(folder / "net.safetensors", made, 40)
    MarginClassifier("test_resnet", ["a", "b"], "CE").save_pretrained(folder / "hub")
    for name in ("config.json", "model.safetensors"):
        loaded = lambda: MarginClassifier.from_pretrained(folder / "hub")  # noqa: E731
        yield f"hub {name}", Reader(folder / "hub" / name, loaded, 30)


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    before = 0
    for readers in (data_readers, run_readers, record_readers, head_readers):
        home = folder / readers.__name__
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        for name, reader in readers(home):
            before = before or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            start = time.perf_counter()
            found = walk(reader)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
            spent = round(time.perf_counter() - start, 2)
            print(json.dumps({"name": name, **found, "megabytes": grown, "seconds": spent}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

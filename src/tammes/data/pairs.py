"""Pairs of faces, same person or not: LFW's `pairs.txt`, CSV files, and insightface's `.bin` files."""

import csv
import io
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from tammes.data.dataset import few
from tammes.data.images import try_read

SUFFIXES = (".txt", ".csv", ".bin")
IMAGES = (".jpg", ".png", ".jpeg")
WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairs:
    """Pairs of images, each image once.

    Attributes:
        name: what tables call them.
        images: paths, or the bytes of encoded images.
        first, second: the places of a pair's images.
        same: whether they show one person.
        fold: of each pair, for cross-validation; None where the list has none.
        people: who is on each image; None where the list does not tell.
    """

    name: str
    images: tuple[str, ...] | tuple[bytes, ...]
    first: Int64[np.ndarray, " n"]
    second: Int64[np.ndarray, " n"]
    same: Bool[np.ndarray, " n"]
    fold: Int64[np.ndarray, " n"] | None = None
    people: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.same)

    def read(self, index: int, size: tuple[int, int]) -> UInt8[np.ndarray, "h w 3"]:
        """An image at height and width `size`; an error where it cannot be read."""
        source = self.images[index]
        image = try_read(io.BytesIO(source) if isinstance(source, bytes) else source, size)
        if isinstance(image, str):
            raise ValueError(f"{self.name}: {self.label(index)} cannot be read: {image}")
        return image

    def label(self, index: int) -> str:
        """What messages call an image."""
        source = self.images[index]
        return f"image {index}" if isinstance(source, bytes) else source


def read_pairs(path: str | Path, images: str | Path | None = None) -> Pairs:
    """The pairs of a list: `.txt` as LFW's, `.csv`, or `.bin` as insightface's.

    Args:
        path: the file.
        images: folder that holds the images of a `.txt` or `.csv` list; by default that of the list, or for
            a `.txt` a folder in it which has the people's folders.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"A list of pairs ends in {', '.join(SUFFIXES)}, got {path}.")
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist. Name a list of pairs.")
    if path.suffix.lower() == ".bin":
        return _read_bin(path)
    rows = _lfw_rows(path) if path.suffix.lower() == ".txt" else _csv_rows(path)
    folder = Path(images) if images is not None else _image_folder(path, rows)
    return _resolved(path, rows, folder)


@dataclass(frozen=True)
class Named:
    """An image in a list: its person and its path without, for LFW, the suffix."""

    person: str
    file: str


Row = tuple[Named, Named, bool, int | None]


def _lfw_rows(path: Path) -> list[Row]:
    """`person i j` for a same pair, `person i other j` for a different one, below their number."""
    head, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
    numbers = [int(word) for word in head.split() if word.isdecimal()]
    if len(numbers) not in (1, 2) or len(numbers) != len(head.split()):
        raise ValueError(f"{path} must begin with the number of folds and pairs, or of pairs, got {head!r}.")
    folds, count = numbers if len(numbers) == 2 else (1, numbers[0])
    if len(lines) != 2 * folds * count:
        raise ValueError(
            f"{path} must have {folds} x {count} same and as many different pairs, {2 * folds * count} "
            f"lines in all, got {len(lines)}. Was it cut short?"
        )
    rows: list[Row] = []
    for number, line in enumerate(lines, 2):
        words = line.split("\t") if "\t" in line else line.split()
        if len(words) not in (3, 4) or not (words[1].isdecimal() and words[-1].isdecimal()):
            raise ValueError(
                f"{path}, line {number}: expected a person and two numbers, or two of each, got {line!r}."
            )
        same = len(words) == 3
        other = words[0] if same else words[2]
        fold = (number - 2) // (2 * count) if len(numbers) == 2 else None
        rows.append((_lfw_image(words[0], words[1]), _lfw_image(other, words[-1]), same, fold))
    return rows


def _lfw_image(person: str, number: str) -> Named:
    return Named(person, f"{person}/{person}_{int(number):04d}")


def _csv_rows(path: Path) -> list[Row]:
    """Columns first, second, same and, if there is one, fold; a person is the folder of an image."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        columns = set(reader.fieldnames or ())
        if not {"first", "second", "same"} <= columns:
            raise ValueError(f"{path} must have the columns first, second and same, got {sorted(columns)}.")
        rows: list[Row] = []
        for line in reader:
            same, fold = str(line["same"]).strip().lower(), line.get("fold")
            if same not in WORDS or not line["first"] or not line["second"]:
                raise ValueError(
                    f"{path}, line {reader.line_num}: expected two files and 1 or 0, got {line}."
                )
            if fold is not None and not fold.strip().isdecimal():
                raise ValueError(f"{path}, line {reader.line_num}: fold must be a number, got {fold!r}.")
            first, second = (Named(Path(line[c]).parent.name, line[c]) for c in ("first", "second"))
            rows.append((first, second, WORDS[same], None if fold is None else int(fold)))
    if not rows:
        raise ValueError(f"{path} has no pairs.")
    return rows


def _image_folder(path: Path, rows: Sequence[Row]) -> Path:
    """The folder of the list, or one in it that has the folder of the first person."""
    person = rows[0][0].person
    inner = sorted(folder for folder in path.parent.iterdir() if folder.is_dir())
    found = [folder for folder in (path.parent, *inner) if person and (folder / person).is_dir()]
    return found[0] if found else path.parent


def _resolved(path: Path, rows: Sequence[Row], folder: Path) -> Pairs:
    """The files of `rows` in `folder`; all that are missing are counted, the first ones named."""
    named = dict.fromkeys(image for first, second, _, _ in rows for image in (first, second))
    places = {image: place for place, image in enumerate(named)}
    files = {image: _find(path, folder, image.file) for image in named}
    missing = [image.file for image, file in files.items() if file is None]
    if missing:
        raise FileNotFoundError(
            f"{path} names {len(missing)} images that are not in {folder}: {few(missing)}. "
            "Name the folder that holds them with --images."
        )
    folds = [fold for *_, fold in rows if fold is not None]
    return Pairs(
        name=path.stem,
        images=tuple(str(file) for file in files.values()),
        first=np.array([places[first] for first, *_ in rows]),
        second=np.array([places[second] for _, second, *_ in rows]),
        same=np.array([same for *_, same, _ in rows]),
        fold=np.array(folds) if len(folds) == len(rows) else None,
        people=tuple(image.person for image in named),
    )


def _find(path: Path, folder: Path, file: str) -> Path | None:
    """The image in `folder`, with a suffix where the list leaves it out; one outside of it is refused."""
    whole = folder / file
    if not whole.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path} names {file!r}, which lies outside of {folder}.")
    names = [whole, *(whole.with_name(whole.name + suffix) for suffix in IMAGES)]
    return next((name for name in names if name.is_file()), None)


class _BytesOnly(pickle.Unpickler):
    """Builds numbers, byte strings, lists and tuples; whatever names code is refused."""

    def __init__(self, file: io.BytesIO, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self.path = path

    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(
            f"{self.path} asks for {module}.{name}, which could run code, and is refused. A .bin file of "
            "faces holds byte strings and truth values alone."
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        raise ValueError(f"{self.path} refers to an object outside of it, {pid!r}, and is refused.")


def _read_bin(path: Path) -> Pairs:
    """A pickled pair of lists: encoded images, two for each pair, and whether the two are of one person."""
    try:
        content = _BytesOnly(io.BytesIO(path.read_bytes()), path).load()
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path} cannot be read: {error}. Was it cut short?") from error
    except Exception as error:  # a damaged pickle raises nearly anything
        raise ValueError(f"{path} cannot be read: {error}. Was it cut short?") from error
    images, same = content if isinstance(content, tuple | list) and len(content) == 2 else ([], [])
    if not _list_of(images, bytes) or not _list_of(same, bool) or len(images) != 2 * len(same) or not same:
        raise ValueError(
            f"{path} must hold a list of encoded images and a list of truth values, half as many, and "
            "nothing else."
        )
    places = np.arange(len(images)).reshape(-1, 2)
    return Pairs(
        name=path.stem,
        images=tuple(images),
        first=places[:, 0],
        second=places[:, 1],
        same=np.array(same),
    )


def _list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(one) is kind for one in value)


def shared_people(pairs: Pairs, classes: Iterable[str]) -> list[str]:
    """The people of the pairs that are among `classes` too, sorted."""
    return sorted(set(pairs.people or ()) & set(classes))

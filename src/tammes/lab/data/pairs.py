"""Face verification pairs: LFW's `pairs.txt`, CSV files, and insightface's `.bin` files."""

import io
import pickle
import pickletools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from tammes._common.checks import reading
from tammes._common.wording import few
from tammes.lab.data.images import try_read
from tammes.lab.data.text_files import below, is_file, is_folder, read_csv, read_lines, whole_number

SUFFIXES = (".txt", ".csv", ".bin")
IMAGES = (".jpg", ".png", ".jpeg")
WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairs:
    """Pairs of images. Each image is stored once.

    Attributes:
        name: name shown in tables.
        images: paths, or the bytes of encoded images.
        first, second: indices into `images` of each pair.
        same: whether a pair shows the same person.
        fold: cross-validation fold of each pair; None if the list has none.
        people: person on each image; None if the list does not say.
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
        """Decode an image at height and width `size`; raise if it is unreadable."""
        source = self.images[index]
        image = try_read(io.BytesIO(source) if isinstance(source, bytes) else source, size)
        if isinstance(image, str):
            raise ValueError(f"{self.name}: {self.label(index)} cannot be read: {image}")
        return image

    def label(self, index: int) -> str:
        """Name of an image in messages."""
        source = self.images[index]
        return f"image {index}" if isinstance(source, bytes) else source


def read_pairs(path: str | Path, images: str | Path | None = None) -> Pairs:
    """Read a pair list: `.txt` in LFW's format, `.csv`, or insightface's `.bin`.

    Args:
        path: the file.
        images: folder of the images of a `.txt` or `.csv` list. Default: the folder of the list, or for
            `.txt` a subfolder with one folder per person.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"A pair list must end in {', '.join(SUFFIXES)}, got {path}.")
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist. Pass a pair list.")
    if path.suffix.lower() == ".bin":
        return _read_bin(path)
    rows = _lfw_rows(path) if path.suffix.lower() == ".txt" else _csv_rows(path)
    folder = Path(images) if images is not None else _image_folder(path, rows)
    return _resolved(path, rows, folder)


@dataclass(frozen=True)
class Named:
    """An image in a list: its person and its path (for LFW without the suffix)."""

    person: str
    file: str


ListedPair = tuple[Named, Named, bool, int | None]


def _lfw_rows(path: Path) -> list[ListedPair]:
    """A line with the counts, then `person i j` for same and `person i other j` for different pairs."""
    head, *lines = read_lines(path) or [""]
    numbers = [number for word in head.split() if (number := whole_number(word))]
    if len(numbers) not in (1, 2) or len(numbers) != len(head.split()):
        raise ValueError(f"{path} must start with the number of pairs, or of folds and pairs, got {head!r}.")
    folds, count = numbers if len(numbers) == 2 else (1, numbers[0])
    if len(lines) != 2 * folds * count:
        raise ValueError(
            f"{path} must have {folds} x {count} same and as many different pairs, {2 * folds * count} "
            f"lines in all, got {len(lines)}. Is it truncated?"
        )
    rows: list[ListedPair] = []
    for number, line in enumerate(lines, 2):
        words = line.split("\t") if "\t" in line else line.split()
        if len(words) not in (3, 4) or None in (whole_number(words[1]), whole_number(words[-1])):
            raise ValueError(
                f"{path}, line {number}: expected `person i j` or `person i other j`, got {line!r}."
            )
        same = len(words) == 3
        other = words[0] if same else words[2]
        fold = (number - 2) // (2 * count) if len(numbers) == 2 else None
        rows.append((_lfw_image(words[0], words[1]), _lfw_image(other, words[-1]), same, fold))
    return rows


def _lfw_image(person: str, number: str) -> Named:
    return Named(person, f"{person}/{person}_{int(number):04d}")


def _csv_rows(path: Path) -> list[ListedPair]:
    """Read the columns first, second, same and, optionally, fold. The folder of an image names the person."""
    rows: list[ListedPair] = []
    for number, line in read_csv(path, ("first", "second", "same")):
        same, fold = line["same"].strip().lower(), line.get("fold")
        if same not in WORDS or not line["first"] or not line["second"]:
            raise ValueError(f"{path}, line {number}: expected two files and 1 or 0, got {line}.")
        if fold is not None and whole_number(fold.strip()) is None:
            raise ValueError(f"{path}, line {number}: fold must be a number, got {fold!r}.")
        first, second = (Named(Path(line[c]).parent.name, line[c]) for c in ("first", "second"))
        rows.append((first, second, WORDS[same], None if fold is None else int(fold)))
    if not rows:
        raise ValueError(f"{path} has no pairs.")
    return rows


def _image_folder(path: Path, rows: Sequence[ListedPair]) -> Path:
    """The folder of the list, or its subfolder that contains the folder of the first person."""
    person = rows[0][0].person
    inner = sorted(folder for folder in path.parent.iterdir() if folder.is_dir())
    found = [folder for folder in (path.parent, *inner) if person and is_folder(folder / person)]
    return found[0] if found else path.parent


def _resolved(path: Path, rows: Sequence[ListedPair], folder: Path) -> Pairs:
    """Find the files of `rows` in `folder`; raise with the number of missing ones and the first names."""
    named = dict.fromkeys(image for first, second, _, _ in rows for image in (first, second))
    places = {image: place for place, image in enumerate(named)}
    files = {image: _find(path, folder, image.file) for image in named}
    missing = [image.file for image, file in files.items() if file is None]
    if missing:
        raise FileNotFoundError(
            f"{path} names {len(missing)} images that are not in {folder}: {few(missing)}. "
            "Set --images to the folder that contains them."
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
    """The image in `folder`, with the suffix added if the list omits it; raise if it is outside."""
    whole = below(folder, file)
    if whole is None:
        raise ValueError(f"{path} names {file!r}, which lies outside {folder}.")
    names = [whole, *(whole.with_name(whole.name + suffix) for suffix in IMAGES)]
    return next((name for name in names if is_file(name)), None)


class _BytesOnly(pickle.Unpickler):
    """Unpickles numbers, byte strings, lists and tuples only; rejects any reference to code."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self.path = path

    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(
            f"{self.path} is rejected: it refers to {module}.{name}, which could run code. A .bin file of "
            "faces contains only byte strings and booleans."
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        raise ValueError(f"{self.path} is rejected: it refers to an external object, {pid!r}.")


PLAIN = {
    *("PROTO", "FRAME", "STOP", "MARK", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "TUPLE", "TUPLE2"),
    *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET"),
    *("STRING", "SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("INT", "NEWTRUE", "NEWFALSE", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE"),
}
"""Opcodes of pickled lists of strings and booleans, in every protocol: nothing is hashed, built or run."""
CODE = {
    "GLOBAL",
    "STACK_GLOBAL",
    "INST",
    "OBJ",
    "NEWOBJ",
    "NEWOBJ_EX",
    "REDUCE",
    "BUILD",
    "PERSID",
    "BINPERSID",
}
BIN = "A .bin file of faces contains a list of encoded images and a list of booleans, and nothing else."


def _check_pickle(path: Path, file: BinaryIO) -> None:
    """Check that opcodes are plain, lengths fit in the file, and memo indices have been reached.

    The unpickler allocates memory for lengths and memo indices before checking them, and hashes nested tuples
    in exponential time.
    """
    size = path.stat().st_size
    for count, (opcode, value, _) in enumerate(pickletools.genops(file)):
        if opcode.name in CODE:
            raise ValueError(f"{path} is rejected: it asks to run code (opcode {opcode.name}). {BIN}")
        if opcode.name not in PLAIN:
            raise ValueError(f"{path} is rejected: it has the pickle opcode {opcode.name}. {BIN}")
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(value or 0) > count + 1:
            raise ValueError(
                f"{path} is rejected: it refers to memo index {value} after {count} opcodes. {BIN}"
            )
        if opcode.name == "FRAME" and int(value or 0) > size:
            raise ValueError(
                f"{path} cannot be read: it has {size} bytes, and an item of {value}. Is it truncated?"
            )


def _read_bin(path: Path) -> Pairs:
    """Read a pickled pair of lists: encoded images, two per pair, and whether they show the same person."""
    with reading(path), path.open("rb") as file:
        _check_pickle(path, file)
        file.seek(0)
        content = _BytesOnly(file, path).load()
    images, same = content if isinstance(content, tuple | list) and len(content) == 2 else ([], [])
    if not _list_of(images, bytes) or not _list_of(same, bool) or len(images) != 2 * len(same) or not same:
        raise ValueError(
            f"{path} must contain a list of encoded images and a list of booleans, half as many, and "
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
    """People of the pairs who are also in `classes`, sorted."""
    return sorted(set(pairs.people or ()) & set(classes))

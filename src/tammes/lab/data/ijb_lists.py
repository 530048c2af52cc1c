"""The lists of IJB-B and IJB-C: template and medium of each image, and the template pairs to verify."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from tammes._common.wording import few
from tammes.lab.data.images import try_read
from tammes.lab.data.text_files import below, read_lines, whole_number


@dataclass(frozen=True, eq=False, kw_only=True)
class Ijb:
    """The 1:1 verification protocol.

    Attributes:
        name: ijbb or ijbc, from the file names of the lists.
        images: image paths.
        template, medium: template and medium of each image.
        first, second: the two templates of each pair.
        same: whether a pair shows the same person.
    """

    name: str
    images: tuple[str, ...]
    template: Int64[np.ndarray, " n"]
    medium: Int64[np.ndarray, " n"]
    first: Int64[np.ndarray, " m"]
    second: Int64[np.ndarray, " m"]
    same: Bool[np.ndarray, " m"]

    def read(self, index: int, size: tuple[int, int]) -> UInt8[np.ndarray, "h w 3"]:
        """Decode an image at height and width `size`; raise if it is unreadable."""
        image = try_read(self.images[index], size)
        if isinstance(image, str):
            raise ValueError(f"{self.name}: {self.images[index]} cannot be read: {image}")
        return image


def is_ijb(folder: Path) -> bool:
    """Whether `folder` or its `meta` contains the lists of IJB-B or IJB-C."""
    return bool(_lists(folder))


def read_ijb(folder: str | Path, images: str | Path | None = None) -> Ijb:
    """Read `ijbX_face_tid_mid.txt` and `ijbX_template_pair_label.txt` from a folder or its `meta`.

    Args:
        folder: folder of the lists.
        images: folder of the images. Default: `loose_crop` next to the lists or one level up.
    """
    folder = Path(folder)
    lists = _lists(folder)
    if not lists:
        raise FileNotFoundError(f"{folder} has no ijb*_face_tid_mid.txt, and neither has {folder / 'meta'}.")
    faces = lists[0]
    prefix = faces.name.removesuffix("_face_tid_mid.txt")
    lines = [line.split() for line in read_lines(faces) if line.strip()]
    numbers = [tuple(map(whole_number, line[1:])) for line in lines]
    wrong = [line for line, found in zip(lines, numbers, strict=True) if len(found) != 2 or None in found]
    if wrong or not lines:
        got = few([" ".join(line) for line in wrong]) or "none"
        raise ValueError(f"Each line of {faces} must have a file, a template and a medium, got {got}.")
    pairs = _table(faces.with_name(f"{prefix}_template_pair_label.txt"))
    where = Path(images) if images is not None else _image_folder(faces.parent)
    template, medium = np.array(numbers, np.int64).T
    return Ijb(
        name=prefix,
        images=tuple(_image(faces, where, name) for name, *_ in lines),
        template=template,
        medium=medium,
        first=pairs[:, 0],
        second=pairs[:, 1],
        same=pairs[:, 2] == 1,
    )


def _image(path: Path, folder: Path, name: str) -> str:
    """The path of an image; raise if it is outside `folder`."""
    file = below(folder, name)
    if file is None:
        raise ValueError(f"{path} names {name!r}, which lies outside {folder}.")
    return str(file)


def _lists(folder: Path) -> list[Path]:
    return sorted(p for inner in (folder, folder / "meta") for p in inner.glob("ijb*_face_tid_mid.txt"))


def _image_folder(lists: Path) -> Path:
    beside = [lists / "loose_crop", lists.parent / "loose_crop"]
    return next((folder for folder in beside if folder.is_dir()), beside[0])


def _table(path: Path) -> Int64[np.ndarray, "m 3"]:
    rows = [[whole_number(word) for word in line.split()] for line in read_lines(path) if line.strip()]
    wrong = [row for row in rows if len(row) != 3 or None in row or row[2] not in (0, 1)]
    if wrong or not rows:
        raise ValueError(f"Each line of {path} must have two templates and 1 or 0.")
    return np.array(rows, np.int64)

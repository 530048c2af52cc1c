"""The lists of IJB-B and IJB-C: template and medium of each image, and the templates to be compared."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from tammes.data.dataset import few
from tammes.data.images import try_read


@dataclass(frozen=True, eq=False, kw_only=True)
class Ijb:
    """The 1:1 protocol.

    Attributes:
        name: ijbb or ijbc, from the names of the lists.
        images: paths.
        template, medium: of each image.
        first, second: the templates of each pair.
        same: whether they are of one person.
    """

    name: str
    images: tuple[str, ...]
    template: Int64[np.ndarray, " n"]
    medium: Int64[np.ndarray, " n"]
    first: Int64[np.ndarray, " m"]
    second: Int64[np.ndarray, " m"]
    same: Bool[np.ndarray, " m"]

    def read(self, index: int, size: tuple[int, int]) -> UInt8[np.ndarray, "h w 3"]:
        """An image at height and width `size`; an error where it cannot be read."""
        image = try_read(self.images[index], size)
        if isinstance(image, str):
            raise ValueError(f"{self.name}: {self.images[index]} cannot be read: {image}")
        return image


def is_ijb(folder: Path) -> bool:
    """Whether the lists of IJB-B or IJB-C lie in `folder` or in its `meta`."""
    return bool(_lists(folder))


def read_ijb(folder: str | Path, images: str | Path | None = None) -> Ijb:
    """The lists `ijbX_face_tid_mid.txt` and `ijbX_template_pair_label.txt` of a folder, or of its `meta`.

    Args:
        folder: holds the lists.
        images: holds the images; by default `loose_crop` beside the lists or above them.
    """
    folder = Path(folder)
    lists = _lists(folder)
    if not lists:
        raise FileNotFoundError(f"{folder} has no ijb*_face_tid_mid.txt, nor has {folder / 'meta'}.")
    faces = lists[0]
    prefix = faces.name.removesuffix("_face_tid_mid.txt")
    lines = [line.split() for line in faces.read_text(encoding="utf-8").splitlines() if line.strip()]
    wrong = [line for line in lines if len(line) != 3 or not (line[1].isdecimal() and line[2].isdecimal())]
    if wrong or not lines:
        got = few([" ".join(line) for line in wrong]) or "none"
        raise ValueError(f"{faces} must have a file, a template and a medium in each line, got {got}.")
    pairs = _table(faces.with_name(f"{prefix}_template_pair_label.txt"))
    where = Path(images) if images is not None else _image_folder(faces.parent)
    return Ijb(
        name=prefix,
        images=tuple(str(where / name) for name, _, _ in lines),
        template=np.array([int(template) for _, template, _ in lines]),
        medium=np.array([int(medium) for *_, medium in lines]),
        first=pairs[:, 0],
        second=pairs[:, 1],
        same=pairs[:, 2] == 1,
    )


def _lists(folder: Path) -> list[Path]:
    return sorted(p for inner in (folder, folder / "meta") for p in inner.glob("ijb*_face_tid_mid.txt"))


def _image_folder(lists: Path) -> Path:
    beside = [lists / "loose_crop", lists.parent / "loose_crop"]
    return next((folder for folder in beside if folder.is_dir()), beside[0])


def _table(path: Path) -> Int64[np.ndarray, "m 3"]:
    try:
        table = np.loadtxt(path, dtype=np.int64, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} must have two templates and 1 or 0 in each line: {error}") from error
    if table.shape[1] != 3 or not np.isin(table[:, 2], (0, 1)).all():
        raise ValueError(f"{path} must have two templates and 1 or 0 in each line.")
    return table

"""Image search with a trained network: the gallery images most similar to a query."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tammes._common import checks
from tammes._common.types import Picture
from tammes.lab.data.augmentation import whole_box
from tammes.lab.data.identities import parsed
from tammes.lab.data.image_folders import folder_labels
from tammes.lab.data.images import Unreadable
from tammes.lab.inference.predictor import Predictor
from tammes.lab.training.run_folder import RunFolder, Which
from tammes.metrics.retrieval import JUNK


class Hit(NamedTuple):
    """A gallery image, its cosine with the query, and whether it is correct, if known."""

    path: str
    similarity: float
    right: bool | None
    picture: Picture


class SearchResult(NamedTuple):
    """A query and its top hits."""

    path: str
    picture: Picture
    hits: list[Hit]


def search(
    folder: RunFolder,
    image: str,
    gallery: Sequence[str],
    *,
    root: Path | None = None,
    top: int = 10,
    which: Which = "last",
) -> SearchResult:
    """The `top` images of the `gallery` that are most similar to `image`.

    A hit is correct if it shows the query's person, as given by the file names. If the files below `root` are
    in class folders and the query is in a folder with one of their names, a hit is correct if it has the
    query's class.

    If file names give person and camera, images of the query's person from the query's camera are excluded,
    as in the re-identification protocol, and so are junk images. The query itself is always excluded.
    Unreadable files are skipped and logged, up to the run's `max_unreadable`.
    """
    checks.at_least("top", top, 1)
    predictor, limit = Predictor(folder, which), folder.config.max_unreadable
    query = predictor.read(image, whole_box)
    others = [path for path in gallery if _is_candidate(Path(image), Path(path))]
    if not others:
        raise ValueError(f"The gallery has no image to compare {image} with, of {len(gallery)} in it.")
    pictures = _readable(predictor, others, limit)
    vectors = predictor.embed(np.stack([query, *pictures.values()]))
    similarities = vectors[1:] @ vectors[0]
    paths = list(pictures)
    best = np.argsort(-similarities, kind="stable")[:top]
    classes = _classes(root, gallery)
    hits = [
        Hit(paths[j], float(similarities[j]), _right(image, paths[j], classes), pictures[paths[j]])
        for j in best
    ]
    return SearchResult(image, query, hits)


def _readable(predictor: Predictor, paths: Sequence[str], limit: int) -> dict[str, Picture]:
    """The readable images, by path."""
    pictures: dict[str, Picture] = {}
    unreadable = Unreadable(limit)
    for path in paths:
        picture, reason = predictor.try_read(path, whole_box)
        if picture is None:
            unreadable.note(path, reason)
        else:
            pictures[path] = picture
    if not pictures:
        raise ValueError(f"None of the {len(paths)} gallery images is readable.")
    return pictures


def _is_candidate(query: Path, other: Path) -> bool:
    """Whether the protocol ranks `other` for the query."""
    if query.resolve() == other.resolve():
        return False
    asked, shown = parsed(query), parsed(other)
    if asked is None or shown is None:
        return True
    return shown.person != JUNK and asked[1:] != shown[1:]


def _classes(root: Path | None, gallery: Sequence[str]) -> dict[str, str]:
    """The class of each image if the gallery is in class folders; otherwise empty."""
    labels = None if root is None else folder_labels(root, [Path(path) for path in gallery])
    return {} if labels is None else dict(zip(gallery, labels, strict=True))


def _right(query: str, other: str, classes: Mapping[str, str]) -> bool | None:
    """Whether both show the same person or class; None if unknown."""
    asked, shown = parsed(Path(query)), parsed(Path(other))
    if asked is not None and shown is not None:
        return asked.person == shown.person
    # Class folders may have subfolders, so the nearest folder with a known name counts.
    above = (parent.name for parent in Path(query).resolve().parents)
    label = next((name for name in above if name in set(classes.values())), None)
    return None if label is None else classes[other] == label

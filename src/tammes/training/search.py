"""A trained network as a search engine: the images of a gallery that are most like one image."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8

from tammes import checks
from tammes.data import normalise, read_image
from tammes.data.augmentation import whole_box
from tammes.data.identities import JUNK, parsed
from tammes.data.images import Unreadable
from tammes.geometry.sphere import normalize
from tammes.models import embed
from tammes.training.classifier import Classifier, DataFacts
from tammes.training.folder import RunFolder, Which

BATCH = 128


class Hit(NamedTuple):
    """An image of the gallery, its cosine with the query, whether it shows the same person, if names tell."""

    path: str
    similarity: float
    right: bool | None
    picture: UInt8[np.ndarray, "h w c"]


class Found(NamedTuple):
    """A query and the first of its list."""

    path: str
    picture: UInt8[np.ndarray, "h w c"]
    hits: list[Hit]


@torch.no_grad()
def search(
    folder: RunFolder, image: str, gallery: Sequence[str], *, top: int = 10, which: Which = "last"
) -> Found:
    """The `top` images of the `gallery` that the run finds most like `image`.

    Where names tell person and camera, images of the query's person by the query's camera are passed over, as
    the protocol has it, and so is junk; the query itself always is. Files that cannot be read are skipped and
    named in the log, up to the run's `max_unreadable`.
    """
    checks.at_least("top", top, 1)
    facts, classifier, flip = folder.facts, folder.classifier(which), folder.config.test_flip
    query = _picture(image, facts)
    others = [path for path in gallery if _counts(Path(image), Path(path))]
    if not others:
        raise ValueError(f"The gallery has no image to compare {image} with, of {len(gallery)} in it.")
    pictures: dict[str, np.ndarray] = {}
    unreadable = Unreadable(folder.config.max_unreadable)
    for path in others:
        try:
            pictures[path] = _picture(path, facts)
        except Exception as error:  # decoders of broken files raise nearly anything
            unreadable.note(path, f"{type(error).__name__}: {error}")
    if not pictures:
        raise ValueError(f"None of the {len(others)} images of the gallery can be read.")
    embedded = _embedded(classifier, facts, [query, *pictures.values()], flip)
    similarities = embedded[1:] @ embedded[0]
    values, places = similarities.topk(min(top, len(pictures)))
    paths = list(pictures)
    hits = [
        Hit(paths[j], value, _same_person(Path(image), Path(paths[j])), pictures[paths[j]])
        for value, j in zip(values.tolist(), places.tolist(), strict=True)
    ]
    return Found(image, query, hits)


def _picture(path: str, facts: DataFacts) -> UInt8[np.ndarray, "h w c"]:
    channels, height, width = facts.shape
    return read_image(path, (height, width), channels, whole_box)


def _counts(query: Path, other: Path) -> bool:
    """Whether the protocol lets `other` answer the query."""
    if query.resolve() == other.resolve():
        return False
    asked, shown = parsed(query), parsed(other)
    if asked is None or shown is None:
        return True
    return shown.person != JUNK and asked[1:] != shown[1:]


def _same_person(query: Path, other: Path) -> bool | None:
    asked, shown = parsed(query), parsed(other)
    return None if asked is None or shown is None else asked.person == shown.person


def _embedded(
    classifier: Classifier, facts: DataFacts, pictures: list[np.ndarray], flip: bool
) -> torch.Tensor:
    """Unit embeddings of the pictures."""
    mean, std = torch.tensor(facts.mean), torch.tensor(facts.std)
    parts = []
    for start in range(0, len(pictures), BATCH):
        stacked = torch.from_numpy(np.stack(pictures[start : start + BATCH])).permute(0, 3, 1, 2)
        pixels = normalise(stacked, mean, std)
        parts.append(embed(classifier.backbone, pixels, flip=flip))
    return normalize(torch.cat(parts))

"""A trained network asked whether two faces are of one person, one by one and list by list."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Int, UInt8

from tammes.data import normalise
from tammes.data.ijb import Ijb
from tammes.data.pairs import Pairs
from tammes.geometry.sphere import normalize
from tammes.metrics.templates import pair_scores, rows_of, template_features
from tammes.metrics.verification import Interval, Roc, Verification, bootstrap, roc, verify
from tammes.models import Backbone, embed
from tammes.provenance import stamp
from tammes.training.classifier import DataFacts
from tammes.training.distributed import ALONE, World
from tammes.training.folder import RunFolder, Which
from tammes.training.storage import write_bytes, write_json

BATCH = 128
MISTAKES = 8
"""So many of the worst mistakes of each kind are kept with their pictures."""

Embedded = Float32[np.ndarray, "n d"]


@runtime_checkable
class Embeddings(Protocol):
    """Whatever knows the unit vectors of images."""

    def of(self, read: Callable[[int], Any], names: Sequence[str]) -> Embedded: ...


@dataclass(frozen=True, eq=False)
class Embedder:
    """Images to unit vectors.

    Args:
        backbone: in evaluation mode.
        facts: how its images are normalised, and their size.
        flip: take the mean embedding of each image and its mirror image.
        world: the processes that share the work.
    """

    backbone: Backbone
    facts: DataFacts
    flip: bool = True
    world: World = ALONE

    def __post_init__(self) -> None:
        if self.facts.shape[0] != 3:
            raise ValueError(
                f"Faces are verified in colour, but the network takes {self.facts.shape[0]} channel."
            )

    @torch.no_grad()
    def __call__(self, images: UInt8[np.ndarray, "n h w 3"]) -> Embedded:
        device = self.world.device
        bytes_ = torch.from_numpy(images).to(device).permute(0, 3, 1, 2)
        mean, std = (torch.tensor(values, device=device) for values in (self.facts.mean, self.facts.std))
        pixels = normalise(bytes_, mean, std)
        embeddings = embed(self.backbone, pixels, flip=self.flip)
        return normalize(embeddings.float()).cpu().numpy()

    def of(self, read: Callable[[int], UInt8[np.ndarray, "h w 3"]], names: Sequence[str]) -> Embedded:
        """The vectors of as many images as there are names; each process makes a share of them."""
        share = np.array_split(np.arange(len(names)), self.world.size)[self.world.rank].tolist()
        parts = [np.empty((0, self.backbone.out_features), np.float32)]
        with ThreadPoolExecutor() as pool:
            for start in range(0, len(share), BATCH):
                parts.append(self(np.stack(list(pool.map(read, share[start : start + BATCH])))))
        return np.concatenate(self.world.gather(np.concatenate(parts)))


def embedder_of(folder: RunFolder, which: Which = "last") -> Embedder:
    """The network of a run, which sees images as it did in training."""
    return Embedder(folder.classifier(which).backbone, folder.facts, folder.config.test_flip)


@dataclass(frozen=True, eq=False, kw_only=True)
class Verified:
    """A list of pairs with their scores, and what these show.

    Attributes:
        name: of the list.
        scores: the cosine of each pair.
        same: which pairs are of one person.
        found: accuracy, AUC, TAR at FAR and so on.
        intervals: of these numbers at 95 %, where the list tells who is on the images.
    """

    name: str
    scores: Float32[np.ndarray, " n"]
    same: np.ndarray
    found: Verification
    intervals: dict[str, Interval]

    def numbers(self) -> dict[str, float]:
        """Under names that begin with that of the list."""
        return {f"{self.name}_{name}": value for name, value in self.found.numbers().items()}


def verify_pairs(
    embeddings: Embeddings, pairs: Pairs, size: tuple[int, int], *, resamples: int = 0
) -> Verified:
    """Score the pairs of a list; with `resamples`, intervals by drawing people anew so many times."""
    names = [pairs.label(index) for index in range(len(pairs.images))]
    vectors = embeddings.of(lambda index: pairs.read(index, size), names)
    scores = pair_scores(vectors, pairs.first, pairs.second)
    intervals: dict[str, Interval] = {}
    if resamples and pairs.people is not None:
        who = np.array(pairs.people)
        ends = np.stack([who[pairs.first], who[pairs.second]], axis=1)
        intervals = bootstrap(scores, pairs.same, ends, pairs.fold, resamples=resamples)
    found = verify(scores, pairs.same, pairs.fold)
    return Verified(name=pairs.name, scores=scores, same=pairs.same, found=found, intervals=intervals)


def verify_ijb(embeddings: Embeddings, ijb: Ijb, size: tuple[int, int]) -> Verified:
    """IJB-B or IJB-C, 1:1: images to media to templates, then all pairs of the list."""
    vectors = embeddings.of(lambda index: ijb.read(index, size), ijb.images)
    names, features = template_features(vectors, ijb.template, ijb.medium)
    scores = pair_scores(features, rows_of(names, ijb.first), rows_of(names, ijb.second))
    return Verified(name=ijb.name, scores=scores, same=ijb.same, found=verify(scores, ijb.same), intervals={})


def score_of_two(embedder: Embedder, first: str, second: str) -> float:
    """The cosine of two image files."""
    pair = Pairs(
        name="the two images",
        images=(first, second),
        first=np.array([0]),
        second=np.array([1]),
        same=np.array([True]),
    )
    one, other = embedder.of(lambda index: pair.read(index, embedder.facts.shape[1:]), [first, second])
    return float(one @ other)


def worst_mistakes(done: Verified) -> Int[np.ndarray, " m"]:
    """The pairs farthest on the wrong side of the threshold, different ones first, the worst first."""
    beyond = np.where(done.same, done.found.threshold - done.scores, done.scores - done.found.threshold)
    order = np.argsort(-beyond, kind="stable")
    wrong = order[beyond[order] > 0]
    return np.concatenate([wrong[done.same[wrong] == kind][:MISTAKES] for kind in (False, True)])


def save_verified(folder: RunFolder, done: Verified, pairs: Pairs | None, seconds: float) -> Path:
    """Keep what was found in the run's folder: NAME.json and NAME.npz in `verification`."""
    target = folder.path / "verification"
    target.mkdir(exist_ok=True)
    arrays: dict[str, np.ndarray] = {"scores": done.scores, "same": done.same}
    arrays["threshold"] = np.array(done.found.threshold)
    if pairs is not None:
        arrays |= _shown(done, pairs, folder.facts.shape[1:])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_bytes(target / f"{done.name}.npz", buffer.getvalue())
    content = {"name": done.name, "numbers": done.found.numbers(), "intervals": done.intervals}
    content |= {"same": done.found.same, "different": done.found.different}
    write_json(target / f"{done.name}.json", content | stamp(seconds=seconds))
    return target / f"{done.name}.json"


def _shown(done: Verified, pairs: Pairs, size: tuple[int, int]) -> dict[str, Any]:
    """Pictures, names and scores of the worst mistakes."""
    worst = worst_mistakes(done)
    ends = [(int(pairs.first[i]), int(pairs.second[i])) for i in worst]
    pictures = [pairs.read(index, size) for couple in ends for index in couple]
    names = [[_short(pairs.label(index)) for index in couple] for couple in ends]
    return {
        "mistake_pictures": np.array(pictures, np.uint8).reshape(-1, 2, *size, 3),
        "mistake_names": np.array(names, str).reshape(-1, 2),
        "mistake_scores": done.scores[worst],
        "mistake_same": done.same[worst],
    }


def _short(label: str) -> str:
    return "/".join(Path(label).parts[-2:])


def read_verified(folder: RunFolder) -> dict[str, dict[str, np.ndarray]]:
    """What `save_verified` kept: the arrays of each list, under its name."""
    found = {}
    for path in sorted((folder.path / "verification").glob("*.npz")):
        with np.load(path, allow_pickle=False) as stored:
            found[path.stem] = dict(stored)
    return found


def known_curve(folder: RunFolder) -> tuple[str, Roc]:
    """The list that the run was last verified on, and its curve: what thresholds are taken from."""
    files = sorted((folder.path / "verification").glob("*.npz"), key=lambda path: path.stat().st_mtime_ns)
    if not files:
        raise FileNotFoundError(
            f"{folder.path} has not been verified yet, so that no threshold is known. First: "
            f"tammes verify {folder.path} pairs.txt"
        )
    with np.load(files[-1], allow_pickle=False) as stored:
        return files[-1].stem, roc(stored["scores"], stored["same"])

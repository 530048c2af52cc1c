"""Face verification with a trained network, on pair lists or on two images."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int

from tammes._common.files import write_bytes, write_json
from tammes.lab.data.arrays import read_arrays
from tammes.lab.data.ijb_lists import Ijb
from tammes.lab.data.pairs import Pairs
from tammes.lab.record_stamp import stamp
from tammes.lab.training.classifier import DataFacts
from tammes.lab.training.embedder import Embedded, Embedder
from tammes.lab.training.record_checks import check_verified
from tammes.lab.training.run_folder import RunFolder
from tammes.metrics.ijb_templates import pair_scores, template_features, template_rows
from tammes.metrics.verification import ConfidenceInterval, Roc, Verification, bootstrap, roc, verify

MISTAKES = 8
"""Number of worst mistakes of each kind to keep with their images."""


@runtime_checkable
class EmbeddingSource(Protocol):
    """A source of unit embeddings of images."""

    def of(self, read: Callable[[int], Any], names: Sequence[str]) -> Embedded: ...


def check_color(facts: DataFacts) -> None:
    """Check that the network takes color images, because pair lists are read in color."""
    if facts.shape[0] != 3:
        raise ValueError(
            f"Face verification reads color images, but the network takes {facts.shape[0]} channel."
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Verified:
    """Scores and metrics of a pair list.

    Attributes:
        name: name of the list.
        scores: the cosine of each pair.
        same: whether each pair shows the same person.
        found: accuracy, AUC, TAR at FAR and so on.
        intervals: their 95 % bootstrap intervals, if the list says who is on the images.
    """

    name: str
    scores: Float32[np.ndarray, " n"]
    same: np.ndarray
    found: Verification
    intervals: dict[str, ConfidenceInterval]

    def numbers(self) -> dict[str, float]:
        """The metrics, with names prefixed by that of the list."""
        return {f"{self.name}_{name}": value for name, value in self.found.numbers().items()}


def verify_pairs(
    embeddings: EmbeddingSource, pairs: Pairs, size: tuple[int, int], *, resamples: int = 0
) -> Verified:
    """Score a pair list; with `resamples`, add bootstrap intervals from that many resamples of people."""
    names = [pairs.label(index) for index in range(len(pairs.images))]
    vectors = embeddings.of(lambda index: pairs.read(index, size), names)
    scores = pair_scores(vectors, pairs.first, pairs.second)
    intervals: dict[str, ConfidenceInterval] = {}
    if resamples and pairs.people is not None:
        who = np.array(pairs.people)
        ends = np.stack([who[pairs.first], who[pairs.second]], axis=1)
        intervals = bootstrap(scores, pairs.same, ends, pairs.fold, resamples=resamples)
    found = verify(scores, pairs.same, pairs.fold)
    return Verified(name=pairs.name, scores=scores, same=pairs.same, found=found, intervals=intervals)


def verify_ijb(embeddings: EmbeddingSource, ijb: Ijb, size: tuple[int, int]) -> Verified:
    """IJB-B or IJB-C 1:1 verification: pool images to media and media to templates, then score all pairs."""
    vectors = embeddings.of(lambda index: ijb.read(index, size), ijb.images)
    names, features = template_features(vectors, ijb.template, ijb.medium)
    scores = pair_scores(features, template_rows(names, ijb.first), template_rows(names, ijb.second))
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


def worst_pairs(done: Verified) -> Int[np.ndarray, " m"]:
    """The pairs farthest on the wrong side of the threshold: different pairs first, worst first."""
    beyond = np.where(done.same, done.found.threshold - done.scores, done.scores - done.found.threshold)
    order = np.argsort(-beyond, kind="stable")
    wrong = order[beyond[order] > 0]
    return np.concatenate([wrong[done.same[wrong] == kind][:MISTAKES] for kind in (False, True)])


def save_verified(folder: RunFolder, done: Verified, pairs: Pairs | None, seconds: float) -> Path:
    """Save the results in the run's folder, as `verification/NAME.json` and `verification/NAME.npz`."""
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
    """Images, names and scores of the worst mistakes."""
    worst = worst_pairs(done)
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
    """Read the results of `save_verified`: the arrays of each list, by name."""
    files = sorted((folder.path / "verification").glob("*.npz"))
    return {path.stem: _kept(path) for path in files}


def _kept(path: Path) -> dict[str, np.ndarray]:
    arrays = read_arrays(path)
    check_verified(path, arrays)
    return arrays


def known_curve(folder: RunFolder) -> tuple[str, Roc]:
    """The pair list of the run's last verification and its ROC curve, from which thresholds are taken."""
    files = sorted((folder.path / "verification").glob("*.npz"), key=lambda path: path.stat().st_mtime_ns)
    if not files:
        raise FileNotFoundError(
            f"{folder.path} has not been verified yet, so no threshold is known. First run: "
            f"tammes verify {folder.path} pairs.txt"
        )
    kept = _kept(files[-1])
    return files[-1].stem, roc(kept["scores"], kept["same"])

"""`tammes verify`: are these faces of one person?"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

RESAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Tell how well a run knows pairs of faces apart, or whether two faces are of one person.

    Pairs come from LFW's pairs.txt, a CSV with the columns first, second and same, insightface's .bin, the
    lists of IJB-B or IJB-C, or a folder that has a folder for each person, from which pairs are drawn. The
    accuracy is over ten folds, each judged by the threshold of the others. What is found is kept in the run's
    folder: tammes report shows it, and two images are judged by its threshold.

    examples:
      tammes verify runs/faces pairs.txt --images lfw
      tammes verify runs/faces ./other-people
      tammes verify runs/faces a.jpg b.jpg --far 0.001
      tammes verify embeddings.npz IJBC
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run, or a file that tammes embed wrote."""
    what: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PAIRS")]
    """A list of pairs, a folder, or two images."""
    images: str | None = None
    """Folder of the images that a list names; by default beside it."""
    far: float = 0.01
    """Share of different pairs that may be accepted, for the threshold that two images are judged by."""
    weights: Literal["last", "best"] = "last"
    """The last weights, or those with the best accuracy."""
    json: bool = False
    """Print the numbers as JSON."""

    def run(self) -> int:
        if len(self.what) == 2:
            return self._two(*self.what)
        if len(self.what) != 1:
            raise ValueError(f"verify needs one list of pairs, or two images, got {len(self.what)} words.")
        return self._list(Path(self.what[0]))

    def _two(self, first: str, second: str) -> int:
        from tammes.metrics.verification import at_far
        from tammes.training.folder import RunFolder
        from tammes.training.verification import embedder_of, known_curve, score_of_two

        folder = RunFolder(Path(self.run_folder))
        name, curve = known_curve(folder)
        point = at_far(curve, self.far)
        score = score_of_two(embedder_of(folder, self.weights), first, second)
        answer = {
            "score": score,
            "threshold": point.threshold,
            "same": score >= point.threshold,
            "false_accept_rate": point.far,
            "true_accept_rate": point.tar,
            "from": name,
        }
        if self.json:
            print(json.dumps(answer))
        else:
            print(f"{'yes' if answer['same'] else 'no'}\tscore {score:.4f}, threshold {point.threshold:.4f}")
            print(
                f"On {name} this threshold accepts {100 * point.far:.2g} % of different and "
                f"{100 * point.tar:.1f} % of same pairs."
            )
        return 0

    def _list(self, path: Path) -> int:
        from tammes.cli.tables import print_verified
        from tammes.training.verification import save_verified

        start = time.perf_counter()
        done, pairs, folder = self._verified(path)
        kept = folder and save_verified(folder, done, pairs, time.perf_counter() - start)
        if self.json:
            found = {"name": done.name, "numbers": done.found.numbers(), "intervals": done.intervals}
            print(json.dumps(found))
            return 0
        print_verified(done.name, done.found, done.intervals)
        if kept:
            print(f"Kept in {kept}. See it: tammes report {self.run_folder}")
        return 0

    def _verified(self, path: Path) -> tuple[Any, Any, Any]:
        """What was found, its pairs where they have pictures, and the run unless embeddings were given."""
        from tammes.data.faces import drawn_pairs, warn_of_shared
        from tammes.data.ijb import is_ijb, read_ijb
        from tammes.data.pairs import read_pairs
        from tammes.training.embeddings import read_embeddings
        from tammes.training.folder import RunFolder
        from tammes.training.verification import embedder_of, verify_ijb, verify_pairs

        source = Path(self.run_folder)
        folder = None if source.suffix == ".npz" else RunFolder(source)
        embeddings = read_embeddings(source) if folder is None else embedder_of(folder, self.weights)
        size = (1, 1) if folder is None else folder.facts.shape[1:]
        if path.is_dir() and is_ijb(path):
            return verify_ijb(embeddings, read_ijb(path, self.images), size), None, folder
        pairs = drawn_pairs(path) if path.is_dir() else read_pairs(path, self.images)
        if folder is not None:
            warn_of_shared(pairs, folder.facts.classes)
        return verify_pairs(embeddings, pairs, size, resamples=RESAMPLES), pairs, folder

"""`tammes verify`: evaluate face verification."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from tammes._common.terminal import printable

if TYPE_CHECKING:
    from tammes.lab.training.embedder import Embedder
    from tammes.lab.training.run_folder import RunFolder

RESAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Evaluate face verification on a list of pairs, or compare two faces.

    Pair lists: LFW's pairs.txt, a CSV file with the columns first, second and same, an insightface .bin file,
    the lists of IJB-B or IJB-C, or a folder with one subfolder per person, from which pairs are drawn.
    Accuracy is cross-validated over ten folds. The result is stored in the run folder: tammes report shows
    it, and its threshold decides when two images are compared.

    examples:
      tammes verify runs/faces pairs.txt --images lfw
      tammes verify runs/faces ./other-people
      tammes verify runs/faces a.jpg b.jpg --far 0.001
      tammes verify embeddings.npz IJBC
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, or a file written by tammes embed."""
    what: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PAIRS")]
    """A list of pairs, a folder of people, or two images."""
    images: str | None = None
    """Folder of the images named in the list. Default: next to the list."""
    far: float = 0.01
    """False accept rate that sets the threshold for comparing two images."""
    weights: Literal["last", "best"] = "last"
    """Checkpoint to use: the last one, or the one with the best accuracy."""
    json: bool = False
    """Print the numbers as JSON."""

    def run(self) -> int:
        if len(self.what) == 2:
            return self._two(*self.what)
        if len(self.what) != 1:
            raise ValueError(f"verify needs one list of pairs or two images, got {len(self.what)} arguments.")
        return self._list(Path(self.what[0]))

    def _embedder(self, folder: "RunFolder") -> "Embedder":
        from tammes.lab.inference.predictor import Predictor
        from tammes.lab.training.face_verification import check_color

        check_color(folder.facts)
        return Predictor(folder, self.weights).embedder

    def _two(self, first: str, second: str) -> int:
        from tammes.lab.training.face_verification import known_curve, score_of_two
        from tammes.lab.training.run_folder import RunFolder
        from tammes.metrics.verification import at_far

        folder = RunFolder(Path(self.run_folder))
        name, curve = known_curve(folder)
        point = at_far(curve, self.far)
        score = score_of_two(self._embedder(folder), first, second)
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
        from tammes.lab.cli.printing import print_verified
        from tammes.lab.training.face_verification import save_verified

        start = time.perf_counter()
        done, pairs, folder = self._verified(path)
        kept = folder and save_verified(folder, done, pairs, time.perf_counter() - start)
        if self.json:
            found = {"name": done.name, "numbers": done.found.numbers(), "intervals": done.intervals}
            print(json.dumps(found))
            return 0
        print_verified(done.name, done.found, done.intervals)
        if kept:
            print(printable(f"Stored in {kept}. To see it: tammes report {self.run_folder}"))
        return 0

    def _verified(self, path: Path) -> tuple[Any, Any, Any]:
        """The result, the pairs if they are images, and the run unless embeddings were given."""
        from tammes.lab.data.face_sets import drawn_pairs, warn_of_shared
        from tammes.lab.data.ijb_lists import is_ijb, read_ijb
        from tammes.lab.data.pairs import read_pairs
        from tammes.lab.inference.embeddings import read_embeddings
        from tammes.lab.training.face_verification import verify_ijb, verify_pairs
        from tammes.lab.training.run_folder import RunFolder

        source = Path(self.run_folder)
        folder = None if source.suffix == ".npz" else RunFolder(source)
        embeddings = read_embeddings(source) if folder is None else self._embedder(folder)
        size = (1, 1) if folder is None else folder.facts.shape[1:]
        if path.is_dir() and is_ijb(path):
            return verify_ijb(embeddings, read_ijb(path, self.images), size), None, folder
        pairs = drawn_pairs(path) if path.is_dir() else read_pairs(path, self.images)
        if folder is not None:
            warn_of_shared(pairs, folder.facts.classes)
        return verify_pairs(embeddings, pairs, size, resamples=RESAMPLES), pairs, folder

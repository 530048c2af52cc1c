"""`tammes search`: find the most similar images in a gallery."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tammes._common.terminal import printable


@dataclass(frozen=True, kw_only=True)
class Search:
    """Search a gallery for the images most similar to a query, and draw them.

    Print one line per image found: rank, cosine similarity, correct or wrong if file names give the
    person or folders the class, and path. The picture frames correct results in green and wrong ones in red.
    Images of the same person from the same camera are excluded, as in the re-identification protocol.

    examples:
      tammes search runs/market query/0955_c1s4_059561_01.jpg --gallery bounding_box_test
      tammes search runs/market photo.jpg --gallery ./photos --top 5 --out found.png
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    image: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")]
    """Query image."""
    gallery: str
    """Gallery: a folder of images."""
    top: int = 10
    """Number of images to find."""
    out: str = "search.png"
    """Output picture."""
    weights: Literal["last", "best"] = "last"
    """Checkpoint to use: the last one, or the one with the best mAP."""
    json: bool = False
    """Print the results as JSON."""

    def run(self) -> int:
        from tammes.lab.data.images import image_files
        from tammes.lab.inference.search import search
        from tammes.lab.report.search_figure import RankedImage, Ranking, draw_ranking
        from tammes.lab.training.run_folder import RunFolder

        if not Path(self.gallery).is_dir():
            raise FileNotFoundError(f"Folder {self.gallery} does not exist. Pass the folder of the gallery.")
        gallery = image_files([self.gallery])
        found = search(
            RunFolder(Path(self.run_folder)),
            self.image,
            gallery,
            root=Path(self.gallery),
            top=self.top,
            which=self.weights,
        )
        answers = [RankedImage(hit.picture, hit.right, f"{hit.similarity:.3f}") for hit in found.hits]
        draw_ranking(Ranking("query", found.picture, answers), Path(self.out))
        if self.json:
            hits = [{"image": h.path, "similarity": h.similarity, "right": h.right} for h in found.hits]
            print(json.dumps({"image": found.path, "found": hits, "picture": self.out}))
        else:
            words = {True: "right", False: "wrong", None: ""}
            for place, hit in enumerate(found.hits, 1):
                print(place, f"{hit.similarity:.3f}", words[hit.right], printable(hit.path), sep="\t")
            print(printable(f"Picture written to {self.out}."))
        return 0

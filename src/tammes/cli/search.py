"""`tammes search`: the images of a gallery that are most like one image."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Search:
    """Find an image's nearest in a gallery with a trained run, and draw them.

    A line for each image found: its place, the cosine, right or wrong where names tell the person, its path.
    The picture shows the query and what was found, in green frames where it is right, in red where wrong.
    Images of the query's person by the query's camera are passed over, as in the re-ID protocol.

    examples:
      tammes search runs/market query/0955_c1s4_059561_01.jpg --gallery bounding_box_test
      tammes search runs/market photo.jpg --gallery ./photos --top 5 --out found.png
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    image: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")]
    """The image to look for."""
    gallery: str
    """Folder of images to look in."""
    top: int = 10
    """So many images are found."""
    out: str = "search.png"
    """The picture."""
    weights: Literal["last", "best"] = "last"
    """The last weights, or those with the best mAP."""
    json: bool = False
    """Print what was found as JSON."""

    def run(self) -> int:
        from tammes.report.lists import Answer, List, draw_lists
        from tammes.training.folder import RunFolder
        from tammes.training.reuse import image_files
        from tammes.training.search import search

        if not Path(self.gallery).is_dir():
            raise FileNotFoundError(f"There is no folder {self.gallery}. Give the folder of the gallery.")
        gallery = image_files([self.gallery])
        found = search(
            RunFolder(Path(self.run_folder)), self.image, gallery, top=self.top, which=self.weights
        )
        answers = [Answer(hit.picture, hit.right, f"{hit.similarity:.3f}") for hit in found.hits]
        draw_lists([List("query", found.picture, answers)], Path(self.out))
        if self.json:
            hits = [{"image": h.path, "similarity": h.similarity, "right": h.right} for h in found.hits]
            print(json.dumps({"image": found.path, "found": hits, "picture": self.out}))
        else:
            words = {True: "right", False: "wrong", None: ""}
            for place, hit in enumerate(found.hits, 1):
                print(place, f"{hit.similarity:.3f}", words[hit.right], hit.path, sep="\t")
            print(f"The picture is {self.out}.")
        return 0

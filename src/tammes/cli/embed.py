"""`tammes embed`: the unit vectors of a folder of images."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Embed:
    """Write the embeddings of all images below a folder to one .npz file.

    It holds files, the paths below the folder, and embeddings, a row of norm 1 for each. An image that cannot
    be read is named on standard error and left out, and the exit code is 1.

    examples:
      tammes embed runs/faces ./photos --out embeddings.npz
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    images: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder of images, or of folders of them."""
    out: str = "embeddings.npz"
    """The file to write."""
    weights: Literal["last", "best"] = "last"
    """The last weights, or those with the best accuracy."""

    def run(self) -> int:
        from tammes.training.embeddings import embed_folder
        from tammes.training.folder import RunFolder
        from tammes.training.reuse import image_files
        from tammes.training.verification import embedder_of

        root = Path(self.images)
        if not root.is_dir():
            raise FileNotFoundError(f"{root} is no folder. Name one that holds images.")
        files = [Path(file) for file in image_files([self.images])]
        embedder = embedder_of(RunFolder(Path(self.run_folder)), self.weights)
        failed = embed_folder(embedder, root, files, Path(self.out))
        for file, reason in failed.items():
            print(f"tammes: cannot read {file}: {reason}", file=sys.stderr)
        print(f"{self.out}: {len(files) - len(failed)} x {embedder.backbone.out_features}")
        return 1 if failed else 0

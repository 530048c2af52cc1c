"""`tammes embed`: embeddings of a folder of images."""

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tammes._common.terminal import printable


@dataclass(frozen=True, kw_only=True)
class Embed:
    """Write the embeddings of all images below a folder to one file.

    An .npz file has the arrays files, the paths relative to the folder, and embeddings, one unit vector per
    row. For class folders it also has labels and, if the run was trained on these classes, classes and
    prototypes, so that `tammes inspect` can read it. A Parquet file has the columns file, label and vector,
    for data frames and embedding viewers. Unreadable images are reported on standard error and skipped; the
    exit code is then 1.

    examples:
      tammes embed runs/faces ./photos --out embeddings.npz
      tammes embed runs/faces ./photos --format parquet
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    images: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder of images; subfolders are searched too."""
    out: str | None = None
    """Output file. Default: embeddings.npz or embeddings.parquet."""
    format: Literal["npz", "parquet"] = "npz"
    """Format: numpy's .npz, or Parquet (needs pyarrow)."""
    weights: Literal["last", "best"] = "last"
    """Checkpoint to use: the last one, or the one with the best accuracy."""

    def run(self) -> int:
        from tammes.lab.data.images import image_files
        from tammes.lab.inference.embeddings import embed_folder
        from tammes.lab.inference.predictor import Predictor
        from tammes.lab.training.run_folder import RunFolder

        if self.format == "parquet" and importlib.util.find_spec("pyarrow") is None:
            raise ValueError('Parquet needs pyarrow. Install it: pip install "tammes[parquet]"')
        root, out = Path(self.images), self.out or f"embeddings.{self.format}"
        if not root.is_dir():
            raise FileNotFoundError(f"{root} is not a folder. Pass a folder of images.")
        files = [Path(file) for file in image_files([self.images])]
        predictor = Predictor(RunFolder(Path(self.run_folder)), self.weights)
        failed = embed_folder(predictor, root, files, Path(out), self.format)
        for file, reason in failed.items():
            print(printable(f"tammes: cannot read {file}: {reason}"), file=sys.stderr)
        width = predictor.embedder.backbone.out_features
        print(printable(f"{out}: {len(files) - len(failed)} x {width}"))
        return 1 if failed else 0

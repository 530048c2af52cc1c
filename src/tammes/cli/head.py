"""`tammes head`: prototypes in and out of checkpoints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class ExportHead:
    """Write the prototypes of a checkpoint, from however many ranks, to one safetensors file.

    examples:
      tammes head export checkpoints/head-0900 prototypes.safetensors
    """

    checkpoint: Annotated[str, tyro.conf.Positional]
    """Folder that tammes.heads.save_head wrote."""
    file: Annotated[str, tyro.conf.Positional]
    """The file to write."""

    def run(self) -> int:
        from tammes.heads.transplant import export_head

        manifest = export_head(self.checkpoint, self.file)
        print(f"{self.file}: weight ({manifest.num_classes}, {manifest.in_features})")
        return 0


@dataclass(frozen=True, kw_only=True)
class ImportHead:
    """Make a checkpoint, which any number of ranks can load, of prototypes from elsewhere.

    Takes a file that `tammes head export` wrote, the saved state of a pytorch-metric-learning loss (W), or
    insightface's files of all ranks (weight).

    examples:
      tammes head import prototypes.safetensors --to checkpoints/head
      tammes head import checkpoint_gpu_*.pt --to checkpoints/head --classes names.txt
    """

    files: Annotated[tuple[str, ...], tyro.conf.Positional]
    """The file, or those of all ranks."""
    to: str
    """A new folder for the checkpoint."""
    classes: str | None = None
    """A text file with the name of a class in each line."""

    def run(self) -> int:
        from tammes.heads.transplant import import_head

        names = None if self.classes is None else Path(self.classes).read_text().splitlines()
        manifest = import_head(self.files, self.to, classes=names)
        print(f"{self.to}: weight ({manifest.num_classes}, {manifest.in_features})")
        return 0


@dataclass(frozen=True, kw_only=True)
class Head:
    """Export and import the prototypes of a head."""

    action: tyro.conf.OmitSubcommandPrefixes[
        tyro.conf.OmitArgPrefixes[
            Annotated[ExportHead, tyro.conf.subcommand(name="export")]
            | Annotated[ImportHead, tyro.conf.subcommand(name="import")]
        ]
    ]

    def run(self) -> int:
        return self.action.run()

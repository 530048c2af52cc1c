"""`tammes head`: export and import the prototypes of head checkpoints."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tammes._common.checks import did_you_mean
from tammes._common.terminal import printable


@dataclass(frozen=True, kw_only=True)
class ExportHead:
    """Export the prototypes of a run, or of a checkpoint written by any number of ranks, to one file.

    examples:
      tammes head export runs/photos prototypes.npz
      tammes head export checkpoints/head-0900 prototypes.safetensors
      tammes head export checkpoints/head-0900 prototypes.npy
    """

    checkpoint: Annotated[str, tyro.conf.Positional]
    """Run folder of `tammes train`, or folder that tammes.heads.save_head wrote."""
    file: Annotated[str, tyro.conf.Positional]
    """Output file; its suffix is the format: .safetensors, .npy, .npz, .pt or .pth."""

    def run(self) -> int:
        from tammes.heads.interop import export_head

        if (Path(self.checkpoint) / "config.json").is_file():
            manifest = _export_run(Path(self.checkpoint), Path(self.file))
        else:
            manifest = export_head(self.checkpoint, self.file)
        print(printable(f"{self.file}: weight {tuple(manifest.shapes['weight'])}"))
        return 0


def _export_run(run: Path, file: Path) -> Any:
    """Export the prototypes of a training run with its class names."""
    from tammes.heads import save_head
    from tammes.heads.interop import export_head
    from tammes.lab.training.run_folder import RunFolder

    folder = RunFolder(run)
    with tempfile.TemporaryDirectory() as scratch:
        saved = Path(scratch) / "head"
        save_head(saved, folder.classifier().head, classes=folder.facts.classes)
        return export_head(saved, file)


@dataclass(frozen=True, kw_only=True)
class ImportHead:
    """Convert prototypes from elsewhere into a checkpoint that any number of ranks can load.

    Reads files written by `tammes head export`, the saved state of a pytorch-metric-learning loss (W),
    insightface's files of all ranks (weight), and head.weight or loss.W in the saved state of a whole model.

    examples:
      tammes head import prototypes.safetensors --to checkpoints/head
      tammes head import model.pt --name classifier.weight --to checkpoints/head
      tammes head import checkpoint_gpu_*.pt --to checkpoints/head --classes names.txt
    """

    files: Annotated[tuple[str, ...], tyro.conf.Positional]
    """The file to import, or the files of all ranks."""
    to: str
    """Checkpoint folder to create."""
    classes: str | None = None
    """Text file with one class name per line."""
    name: str | None = None
    """Name of the prototype tensor, if it is not weight, W, head.weight or loss.W."""

    def run(self) -> int:
        from tammes.heads.interop import import_head
        from tammes.lab.data.text_files import read_lines

        names = None if self.classes is None else read_lines(Path(self.classes))
        manifest = import_head(self.files, self.to, classes=names, name=self.name)
        print(printable(f"{self.to}: weight {tuple(manifest.shapes['weight'])}"))
        return 0


ACTIONS = {"export": ExportHead, "import": ImportHead}


@dataclass(frozen=True, kw_only=True)
class Head:
    """Export and import the prototypes of a head.

    actions:
      export  export the prototypes of a run or a checkpoint to one file
      import  convert prototypes from elsewhere into a checkpoint

    examples:
      tammes head export checkpoints/head-0900 prototypes.safetensors
      tammes head import prototypes.safetensors --to checkpoints/head
      tammes head import --help
    """

    @classmethod
    def from_args(cls, words: list[str]) -> Any:
        """The action named by the first word, with the flags in the others."""
        from tammes.lab.cli import flags

        if not words or words[0].startswith("-"):
            return flags(cls, "head ACTION ...", words or ["--help"])
        name, *rest = words
        if name not in ACTIONS:
            raise ValueError(f"Unknown action {name!r}. {did_you_mean(name, ACTIONS)}")
        return flags(ACTIONS[name], f"head {name}", rest)

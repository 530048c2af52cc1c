"""Select the folders on a command line that contain finished runs."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tammes._common.terminal import printable
from tammes.lab.training.run_folder import RunFolder, run_folders


def finished_runs(paths: Sequence[str], command: str) -> list[Path]:
    """The finished runs among `paths`. Others are skipped, with the reason on standard error.

    Raises ValueError if none is finished.
    """
    folders = [RunFolder(path) for path in run_folders(paths)]
    if not folders:
        raise ValueError(f"{command} needs at least one run folder, as in: tammes {command} runs/*")
    if len(folders) == 1:
        folders[0].finished()
    skipped = {folder.path: _reason(folder) for folder in folders}
    finished = [path for path, reason in skipped.items() if not reason]
    if not finished:
        raise ValueError(f"None of the {len(folders)} folders holds a finished run: {skipped.popitem()[1]}")
    for path, reason in skipped.items():
        if reason:
            print(printable(f"tammes: skipping {path}: {reason}"), file=sys.stderr)
    return finished


def _reason(folder: RunFolder) -> str:
    """Why a folder is skipped; empty for a finished run. Raises if the folder does not exist."""
    if not folder.path.exists():
        folder.finished()
    if not (folder.path / "config.json").is_file():
        return "it is not a run folder."
    return f"not finished. Resume it: {folder.how_to_resume()}" if folder.result is None else ""

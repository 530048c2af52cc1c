"""Figures on disk. matplotlib draws them: PNG, PDF and SVG for papers and READMEs, without a browser."""

import io
from pathlib import Path
from typing import Any

from tammes._common.files import write_bytes

FIGURE_FORMATS = (".png", ".pdf", ".svg")


def save_figure(figure: Any, path: Path, *, dpi: int = 130) -> None:
    """Write a matplotlib figure; the file is complete or absent."""
    if path.suffix not in FIGURE_FORMATS:
        raise ValueError(f"A figure must be a {', '.join(FIGURE_FORMATS)} file, got {path.name!r}.")
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi, format=path.suffix[1:])
    write_bytes(path, buffer.getvalue())

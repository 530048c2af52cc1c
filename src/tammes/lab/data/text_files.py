"""Read user-written lists and tables. Every error names the file and the line."""

import csv
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tammes._common.checks import reading

DIGITS = 18
"""Integers of up to this many digits fit in 64 bits."""


def read_lines(path: Path) -> list[str]:
    """The lines of a text file."""
    with reading(path, "Expected text in UTF-8."):
        return path.read_text(encoding="utf-8").splitlines()


def read_csv(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and values of each row of a CSV file with these columns. Missing values are empty."""
    with reading(path), path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, restval="")
        found = reader.fieldnames or ()
        missing = [name for name in columns if name not in found]
        if missing:
            raise ValueError(
                f"{path} needs the columns {','.join(columns)}; missing: {', '.join(missing)}. It has "
                f"{', '.join(map(repr, found[:9])) or 'none'}."
            )
        for row in reader:
            yield reader.line_num, row


def whole_number(text: str) -> int | None:
    """Parse a non-negative integer that fits in 64 bits; None for any other text.

    >>> whole_number("12"), whole_number("-1"), whole_number("9" * 5000)
    (12, None, None)
    """
    plain = text.isascii() and text.isdecimal() and len(text.lstrip("0")) <= DIGITS
    return int(text) if plain else None


def below(folder: Path, name: str) -> Path | None:
    """The file `name` in `folder`; None if the name or a symbolic link leads out of it."""
    if "\0" in name or os.path.isabs(name):
        return None
    home, file = _resolved(folder), folder / name
    try:
        real = _resolved(file.parent) / file.name
        if real.is_symlink() or file.name in ("", "..") or ".." in Path(name).parts:
            real = file.resolve()
    except OSError:  # the name is too long, so there is no such file
        return file
    return file if real.is_relative_to(home) else None


@functools.lru_cache(1024)
def _resolved(folder: Path) -> Path:
    """Cached, because a folder can have a million files."""
    return folder.resolve()


def is_file(path: Path) -> bool:
    """Whether the file exists; False for invalid file names."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or contains a zero byte
        return False


def is_folder(path: Path) -> bool:
    """Whether the folder exists."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False

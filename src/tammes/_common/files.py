"""Atomic file writes, JSON and checksums. All code that writes files uses this module.

A file is written under a random name next to its target, flushed to disk and renamed. A crash, a full disk or
a concurrent reader therefore never sees a partial file, and nobody can plant a symbolic link at the temporary
name.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically, creating missing folders; on failure the old file stays.

    Symbolic links are followed. A path that is not a regular file, such as a FIFO or a device, is written to
    directly.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        there = _mode(path)
        if there is None or stat.S_ISREG(there):
            _replace(Path(os.path.realpath(path)), content, there)
        else:
            with path.open("wb") as file:
                file.write(content)
    except OSError as error:
        raise OSError(f"Cannot write {path}: {error.strerror or error}.") from error


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any, *, indent: int = 2, allow_nan: bool = True) -> None:
    """Write `value` to `path` as JSON."""
    write_text(path, json.dumps(value, indent=indent, allow_nan=allow_nan) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}.") from error


def sha256(content: bytes) -> str:
    """SHA-256 checksum in hexadecimal, as stored in manifests."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_file(path: Path) -> str:
    """SHA-256 checksum of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


WRONG_CHECKSUM = "its checksum is wrong, so it was damaged after it was written."


def write_folder(path: Path, contents: Mapping[str, bytes]) -> None:
    """Create the folder `path` with the given files atomically; on failure nothing is left behind."""
    temporary, name = temporary_name(path), ""
    try:
        temporary.mkdir()
        for name, content in contents.items():
            (temporary / name).write_bytes(content)
        publish_folder(temporary, path)
    except OSError as error:
        raise OSError(f"Cannot write {path / name}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def publish_folder(temporary: Path, path: Path) -> None:
    """Flush the files in the folder `temporary` to disk and rename it to `path`."""
    for file in temporary.iterdir():
        _flush(file)
    _flush_folder(temporary)
    temporary.rename(path)
    _flush_folder(path.parent)


def temporary_name(path: Path, token: str | None = None) -> Path:
    """An unguessable name next to `path`; pass `token` if several processes must agree on it."""
    start = path.name[:50]  # file names have at most 255 bytes
    return path.with_name(f".{start}.{token or secrets.token_hex(8)}.tmp")


def _flush(path: Path) -> None:
    """Flush a file to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(path: Path) -> None:
    """Flush a folder's entries to disk, if the system supports it."""
    with contextlib.suppress(OSError):
        _flush(path)


def _mode(path: Path) -> int | None:
    """File type and permissions of `path`, following links; None if it does not exist."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _replace(path: Path, content: bytes, mode: int | None) -> None:
    """Write `content` to `path`, a new or regular file, and keep its permissions."""
    temporary = temporary_name(path)
    # O_EXCL does not follow links; unlike mkstemp's 0600, mode 0666 leaves permissions to the umask.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.chmod(descriptor, stat.S_IMODE(mode))
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)

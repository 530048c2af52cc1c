"""A lock that lets only one process train in a folder."""

import errno
import fcntl
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tammes.lab.training.distributed import World

NAME = ".lock"
UNSUPPORTED = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}

_held: set[int] = set()
"""File descriptors of the locks held by this process."""


class FolderInUseError(Exception):
    """Raised if another process is training in the folder."""

    exit_code = 2


@contextmanager
def locked(folder: Path, here: World) -> Iterator[None]:
    """Lock `folder` against other processes. All ranks must call it; rank 0 holds the lock.

    The folder is created if missing, and removed again if it is still empty at the end. If the process dies,
    the operating system releases the lock.
    """
    with ExitStack() as stack:
        here.on_first(lambda: stack.enter_context(_locked(folder)))
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"Cannot create the folder {folder}: {error.strerror}.") from error
    lock = folder / NAME
    descriptor = _acquire(lock)
    _held.add(descriptor)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        _held.discard(descriptor)
        os.close(descriptor)
        with suppress(OSError):  # not empty
            for path in missing:
                path.rmdir()


def _acquire(lock: Path) -> int:
    """Lock the file `lock` and return its descriptor."""
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise OSError(f"Cannot write {lock}: {error.strerror}.") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
                os.close(descriptor)
                raise _in_use(lock.parent, owner) from error
            warnings.warn(
                f"{lock.parent} is on a file system without locks. Do not train in it from another process.",
                stacklevel=2,
            )
        if _is_at(lock, descriptor):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor
        os.close(descriptor)  # the previous owner removed the file after it was opened here


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether `path` is still the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _in_use(folder: Path, owner: str) -> FolderInUseError:
    by = f"process {owner}" if owner.isdecimal() else "another process"
    return FolderInUseError(
        f"{folder} is in use: {by} is training in it. Wait for it to end, or choose another folder with "
        "--out."
    )


def _release_in_child() -> None:
    """Close inherited locks: a lock lasts while any process has it open, and workers may outlive a run."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_release_in_child)

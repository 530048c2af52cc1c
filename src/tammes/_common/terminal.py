"""Terminal output: text without control characters, and streams that may close at any time."""

import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""ASCII and Latin-1 control characters, and characters that change the text direction."""


def printable(text: object) -> str:
    """Untrusted text, such as class and file names, with control characters escaped.

    >>> print(printable("red" + chr(27) + "[2J"))
    red\\x1b[2J
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def open_missing_streams() -> None:
    """Redirect standard streams that were closed at startup, as by `2>&-`, to the null device.

    Otherwise printing fails, and the next opened file takes over the descriptor of standard error.
    """
    for name, descriptor in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            _point_at_nothing(descriptor, if_open=False)
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115


@contextmanager
def tolerating_closed_output() -> Iterator[None]:
    """Discard output instead of failing once its reader is gone: `| head -1`, a closed terminal."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Unread(sys.stdout), Unread(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class Unread:
    """A text stream that discards output after a failed write."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._forgiving():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._forgiving():
            self._stream.flush()

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            silence(self._stream)


def silence(stream: Any) -> None:
    """Redirect `stream`'s descriptor to the null device, so that its buffer can be flushed."""
    with contextlib.suppress(OSError, ValueError):
        _point_at_nothing(stream.fileno())


def _point_at_nothing(descriptor: int, *, if_open: bool = True) -> None:
    if not if_open:
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            return  # the descriptor has been reused in the meantime
    nothing = os.open(os.devnull, os.O_RDWR)
    if nothing != descriptor:
        os.dup2(nothing, descriptor)
        os.close(nothing)


@contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise `SystemExit`, so that temporary files are removed."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    kinds = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before: dict[int, Any] = {}
    with contextlib.suppress(ValueError):  # only the main thread can handle signals
        for kind in kinds:
            if signal.getsignal(kind) == signal.SIG_DFL:  # nohup ignores SIGHUP
                before[kind] = signal.signal(kind, end)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)

"""The command line: parses, calls, prints. One file per command, no mathematics."""

import importlib
import inspect
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import tammes
from tammes.checks import nearest
from tammes.memory import keep_freed_memory

COMMANDS = {
    "demo": "tammes.cli.demo:Demo",
    "train": "tammes.cli.train:Train",
    "evaluate": "tammes.cli.evaluate:Evaluate",
    "predict": "tammes.cli.predict:Predict",
    "search": "tammes.cli.search:Search",
    "verify": "tammes.cli.verify:Verify",
    "embed": "tammes.cli.embed:Embed",
    "export": "tammes.cli.export:Export",
    "compare": "tammes.cli.compare:Compare",
    "report": "tammes.cli.report:Report",
    "inspect": "tammes.cli.inspection:Inspect",
    "pack": "tammes.cli.pack:Pack",
    "reproduce": "tammes.cli.reproduce:Reproduce",
    "head": "tammes.cli.head:Head",
}
"""Command name to the dataclass whose fields are its flags and whose `run` does it and gives the exit code.

Where the flags alone do not decide, the class has a `from_args` that makes one from the words typed.
"""

INSTALL = 'The command line needs the lab extra. Install it: pip install "tammes[lab]"'

USAGE = """\
usage: tammes COMMAND ...

Learning towards the largest margins: train classifiers, measure their margins, pack spheres.

{commands}

tammes COMMAND --help explains a command. With --debug an error shows where it came from.
Exit codes: 0 done, 1 an error, 2 a mistake in the command, 130 interrupted.

examples:
  tammes demo
  tammes train ./photos --objective "CosFace(s=16, m=0.2) + 0.5*R_sm" --out runs/photos
  tammes predict runs/photos new/*.jpg"""

EXPECTED = (ValueError, TypeError, OSError, ArithmeticError)
"""Errors that a user can mend; their messages say how."""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse `argv`, run the command, return its exit code; a mistake is one line, not a traceback."""
    keep_freed_memory()
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return _dispatch(words)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if debug:
            raise
        print(f"tammes: {_one_line(error)}", file=sys.stderr)
        return getattr(error, "exit_code", 1)


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["--version"]:
        print(f"tammes {tammes.__version__}")
        return 0
    if not words or words[0] in ("-h", "--help"):
        print(USAGE.format(commands="\n".join(map(_summary, COMMANDS))))
        return 0 if words else 2
    name, *rest = words
    if name not in COMMANDS:
        print(f"tammes: unknown command {name!r}. {nearest(name, COMMANDS)}", file=sys.stderr)
        return 2
    return parse(load(name), name, rest).run()


def load(name: str) -> Any:
    """The class of a command; only its module is imported."""
    return load_class(COMMANDS[name])


def load_class(path: str) -> Any:
    """The class at "module:name"; a missing package is named with the line that installs it."""
    module, kind = path.split(":")
    try:
        return getattr(importlib.import_module(module), kind)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tammes"):
            raise
        raise OSError(f"{error}. {INSTALL}") from error


def parse(kind: Any, name: str, words: list[str]) -> Any:
    """An instance of the command class `kind` with the flags in `words`."""
    if hasattr(kind, "from_args"):
        return kind.from_args(words)
    return flags(kind, name, words)


def flags(kind: Any, name: str, words: list[str], default: Any = None) -> Any:
    """The dataclass `kind` with the flags in `words`; ends the program at --help or a mistake."""
    try:
        import tyro
    except ModuleNotFoundError as error:
        raise OSError(INSTALL) from error
    given = {} if default is None else {"default": default}
    return tyro.cli(kind, prog=f"tammes {name}", description=inspect.getdoc(kind), args=words, **given)


def _summary(name: str) -> str:
    return f"  {name:10}{(inspect.getdoc(load(name)) or '').partition(chr(10))[0]}"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, EXPECTED) or hasattr(error, "exit_code"):
        return text
    if "out of memory" in text or "can't allocate memory" in text:
        return "There is not enough memory. Try a smaller --batch-size or --image-size."
    return f"{type(error).__name__}: {text} (This is a bug; --debug shows where.)"


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"tammes: warning: {message}", file=sys.stderr)

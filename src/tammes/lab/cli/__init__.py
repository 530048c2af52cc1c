"""The command line: parse flags, call the library or the lab, print. One file per command, no mathematics."""

import importlib
import inspect
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import tammes
from tammes._common import terminal
from tammes._common.checks import did_you_mean
from tammes._common.memory import keep_freed_memory

COMMANDS = {
    "demo": "tammes.lab.cli.demo:Demo",
    "data": "tammes.lab.cli.data:Data",
    "train": "tammes.lab.cli.train:Train",
    "evaluate": "tammes.lab.cli.evaluate:Evaluate",
    "predict": "tammes.lab.cli.predict:Predict",
    "search": "tammes.lab.cli.search:Search",
    "verify": "tammes.lab.cli.verify:Verify",
    "embed": "tammes.lab.cli.embed:Embed",
    "export": "tammes.lab.cli.export:Export",
    "compare": "tammes.lab.cli.compare:Compare",
    "report": "tammes.lab.cli.report:Report",
    "inspect": "tammes.lab.cli.inspection:Inspect",
    "pack": "tammes.lab.cli.pack:Pack",
    "theory": "tammes.lab.cli.theory:Theory",
    "reproduce": "tammes.lab.cli.reproduce:Reproduce",
    "head": "tammes.lab.cli.head:Head",
}
"""Maps each command to its dataclass: the fields are the flags, and `run` returns the exit code.

A class with subcommands has a `from_args` that builds the right one from the words typed.
"""

INSTALL = 'The command line needs the lab extra. Install it: pip install "tammes[lab]"'

USAGE = """\
usage: tammes COMMAND ...

Learning towards the largest margins: train classifiers, measure their margins, pack spheres.

{commands}

options:
  -h, --help                Show this page, or the help of a command.
  --version                 Print the version.
  --plugin FILE             Load a Python file that registers losses; may be repeated.
  --debug                   Show the traceback of an error.
  --print-completion SHELL  Print the completion script for bash, zsh or fish.

Exit codes: 0 success, 1 error, 2 usage error, 130 interrupted, 141 output closed.

examples:
  tammes demo
  tammes train ./photos --objective "CosFace(s=16, m=0.2) + 0.5*R_sm" --out runs/photos
  tammes predict runs/photos new/*.jpg"""

LONG = {"train", "demo", "reproduce"}
"""Commands that write files. They continue when their output pipe is closed."""

EXPECTED = (ValueError, TypeError, OSError, ArithmeticError)
"""Errors that the user can fix; their messages say how."""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse `argv`, run the command and return its exit code. Errors print one line, not a traceback."""
    keep_freed_memory()
    terminal.open_missing_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        with warnings.catch_warnings(), terminal.unwinding_on_signals():
            warnings.showwarning = _show_warning
            code = _dispatch(_without_plugins(words))
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # as in `tammes predict ... | head -1`
        terminal.silence(sys.stdout)
        terminal.silence(sys.stderr)
        return 141
    except Exception as error:
        if debug:
            raise
        print(terminal.printable(f"tammes: {_one_line(error)}"), file=sys.stderr)
        return getattr(error, "exit_code", 1)


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["--version"]:
        print(f"tammes {tammes.__version__}")
        return 0
    if words[:1] == ["--print-completion"]:
        return _print_completion(words[1:])
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(_usage())
        return 0 if words else 2
    name, *rest = words
    if name not in COMMANDS:
        print(f"tammes: unknown command {name!r}. {did_you_mean(name, COMMANDS)}", file=sys.stderr)
        return 2
    command = parse_command(load_command(name), name, rest)
    if name in LONG:
        with terminal.tolerating_closed_output():
            return command.run()
    return command.run()


def _usage() -> str:
    from tammes.lab.cli.help_page import wrapped

    commands = "\n".join(f"  {name:11}{summary(load_command(name))}" for name in COMMANDS)
    about, title, examples = USAGE.partition("examples:\n")
    return wrapped(about.format(commands=commands)) + title + examples


def _without_plugins(words: list[str]) -> list[str]:
    """Load the files of `--plugin FILE` and `--plugin=FILE`; return the remaining `words`."""
    others, paths, following = [], [], iter(words)
    for word in following:
        name, given, value = word.partition("=")
        if name != "--plugin":
            others.append(word)
            continue
        path = value if given else next(following, "")
        if not path:
            raise ValueError("--plugin needs a file: --plugin my_losses.py.")
        paths.append(path)
    if paths:
        from tammes.losses._registry import hand_on_plugins

        hand_on_plugins(paths)
    return others


def _print_completion(words: list[str]) -> int:
    from tammes.lab.cli.completion import SHELLS, completion
    from tammes.lab.cli.help_page import option_names

    if len(words) != 1 or words[0] not in SHELLS:
        print(f"tammes: --print-completion takes one of {', '.join(SHELLS)}.", file=sys.stderr)
        return 2
    kinds = {name: load_command(name) for name in COMMANDS}
    print(completion(words[0], {name: (summary(kind), option_names(kind)) for name, kind in kinds.items()}))
    return 0


def load_command(name: str) -> Any:
    """The class of a command. Imports only the module of that command."""
    return load_class(COMMANDS[name])


def load_class(path: str) -> Any:
    """The class at "module:name". If a package is missing, the error says how to install it."""
    module, kind = path.split(":")
    try:
        return getattr(importlib.import_module(module), kind)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tammes"):
            raise
        raise OSError(f"{error}. {INSTALL}") from error


def parse_command(kind: Any, name: str, words: list[str]) -> Any:
    """An instance of the command class `kind` with the flags in `words`."""
    if hasattr(kind, "from_args"):
        return kind.from_args(words)
    return flags(kind, name, words)


class UsageError(ValueError):
    """Invalid flags."""

    exit_code = 2


def typed(words: list[str]) -> set[str]:
    """The fields whose flags appear in `words`, whatever their values.

    >>> sorted(typed(["digits", "--batch-size", "8", "--lr=0.1", "--no-augment"]))
    ['augment', 'batch_size', 'lr']
    """
    options = (word[2:].partition("=")[0] for word in words if word.startswith("--"))
    return {option.removeprefix("no-").replace("-", "_") for option in options}


def flags(kind: Any, name: str, words: list[str]) -> Any:
    """The dataclass `kind` with the flags in `words`. Exits on --help and on usage errors."""
    asked = {"-h", "--help", "--help-all"} & set(words)
    if asked:
        from tammes.lab.cli.help_page import help_page

        print(help_page(kind, name, everything="--help-all" in asked))
        raise SystemExit(0)
    try:
        import tyro
    except ModuleNotFoundError as error:
        raise OSError(INSTALL) from error
    return tyro.cli(kind, prog=f"tammes {name}", description=inspect.getdoc(kind), args=words)


def summary(kind: Any) -> str:
    """The first line of a command's docstring."""
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, EXPECTED) or hasattr(error, "exit_code"):
        return text
    if "out of memory" in text or "can't allocate memory" in text:
        return "Out of memory. Try a smaller --batch-size or --image-size."
    return f"{type(error).__name__}: {text} (This is a bug; --debug shows where.)"


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(terminal.printable(f"tammes: warning: {message}"), file=sys.stderr)

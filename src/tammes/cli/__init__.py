"""The command line: parses, calls, prints. One file per command, no mathematics."""

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated

COMMANDS = {
    "pack": "tammes.cli.pack:Pack",
}
"""Command name to the dataclass whose fields are its flags and whose `run` does it."""

INSTALL = 'The command line needs the lab extra. Install it: pip install "tammes[lab]"'


def load(path: str) -> type:
    """The class behind "module:name"."""
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse `argv`, run the command, return its exit code; a mistake is one line, not a traceback."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    argv = [word for word in argv if word != "--debug"]
    try:
        import tyro
    except ImportError:
        print(INSTALL, file=sys.stderr)
        return 2
    named = [word for word in argv[:1] if word in COMMANDS] or list(COMMANDS)
    choices = [Annotated[load(COMMANDS[name]), tyro.conf.subcommand(name=name)] for name in named]
    command = tyro.cli(tyro.extras.subcommand_type_from_defaults, prog="tammes", args=argv)
    try:
        return command.run() or 0
    except (ValueError, TypeError, OSError) as error:
        if debug:
            raise
        print(f"tammes: {error}", file=sys.stderr)
        return 1

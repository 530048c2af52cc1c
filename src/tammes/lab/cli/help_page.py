"""Help pages: the flags of a command, read from the dataclass that declares them.

tyro parses the flags. The help pages are written here, because they must appear instantly (tyro's need every
type imported), and because a dozen options serve a newcomer better than eighty.
"""

import ast
import dataclasses
import inspect
import re
import shutil
import textwrap
import types
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

WIDEST = 100
"""Maximum width of a help page."""
INDENT = 28
"""Column at which the help texts start."""
METAVARS = {int: "INT", float: "FLOAT", str: "TEXT"}


@dataclass(frozen=True)
class Flag:
    """One option or positional argument of a command."""

    field: str
    usage: str
    text: str
    positional: bool

    @property
    def name(self) -> str:
        return "--" + self.field.replace("_", "-")


def flags_of(kind: Any) -> list[Flag]:
    """The flags of a command class in order of declaration.

    The text of a flag is the string below its field, or the field's metadata "help".
    """
    texts = _field_docstrings(kind)
    hints = get_type_hints(kind, include_extras=True)
    return [
        _flag(field, hints[field.name], field.metadata.get("help") or texts.get(field.name, ""))
        for field in dataclasses.fields(kind)
    ]


def help_page(kind: Any, command: str, *, everything: bool = False) -> str:
    """The help page of a command: description, arguments, grouped options, examples.

    A class with many options lists the ones people use first in `first_options` and groups all of them in
    `option_groups`. With `everything`, the page shows all of them.
    """
    about, _, examples = (inspect.getdoc(kind) or "").partition("examples:\n")
    flags = flags_of(kind)
    positional = [flag for flag in flags if flag.positional]
    options = [flag for flag in flags if not flag.positional]
    usage = " ".join(["usage: tammes", command, *(flag.usage for flag in positional)])
    parts = [usage + (" [options]" if options else ""), wrapped(about.strip())]
    if positional:
        parts.append("\n".join(["arguments:", *map(_entry, positional)]))
    parts += [
        "\n".join([f"{title}:", *map(_entry, members)])
        for title, members in _groups(kind, options, everything=everything)
    ]
    first = getattr(kind, "first_options", None)
    if first is not None and not everything:
        parts.append(f"{len(options) - len(first)} more options: tammes {command} --help-all")
    if examples:
        parts.append("examples:\n" + textwrap.indent(textwrap.dedent(examples), "  "))
    return "\n\n".join(part for part in parts if part)


def _groups(kind: Any, options: list[Flag], *, everything: bool) -> list[tuple[str, list[Flag]]]:
    groups: dict[str, tuple[str, ...]] | None = getattr(kind, "option_groups", None)
    if groups is None:
        return [("options", options)] if options else []
    first = None if everything else getattr(kind, "first_options", None)
    shown = {flag.field: flag for flag in options if first is None or flag.field in first}
    found = [(title, [shown[name] for name in names if name in shown]) for title, names in groups.items()]
    return [(title, members) for title, members in found if members]


def option_names(kind: Any) -> list[str]:
    """The options of a command as they are typed, with those that print its help."""
    names = [flag.usage.split()[0] for flag in flags_of(kind) if not flag.positional]
    return [*names, "--help", *(["--help-all"] if hasattr(kind, "first_options") else [])]


def wrapped(text: str) -> str:
    """Paragraphs filled to the width of the terminal; in lists, the continuation lines are indented."""
    paragraphs = re.split(r"\n\n+", text)
    return "\n\n".join("\n".join(_lines(paragraph)) for paragraph in paragraphs)


def _lines(paragraph: str) -> list[str]:
    entries = paragraph.split("\n")
    if not any(entry.startswith("  ") for entry in entries):
        return textwrap.wrap(paragraph, _width(), break_on_hyphens=False)
    found: list[str] = []
    for entry in entries:
        name = re.match(r"  \S.*?  +|", entry)
        assert name is not None
        hanging = " " * name.end()
        found += textwrap.wrap(entry, _width(), subsequent_indent=hanging, break_on_hyphens=False)
    return found


def _width() -> int:
    return max(60, min(shutil.get_terminal_size().columns, WIDEST))


def _entry(flag: Flag) -> str:
    lines = textwrap.wrap(flag.text, _width() - INDENT, break_on_hyphens=False) or [""]
    head = f"  {flag.usage}"
    if len(head) < INDENT - 1:
        head, lines = head.ljust(INDENT) + lines[0], lines[1:]
    return "\n".join([head, *(" " * INDENT + line for line in lines)])


def _flag(field: dataclasses.Field[Any], hint: Any, text: str) -> Flag:
    annotations = [str(note) for note in getattr(hint, "__metadata__", ())]
    positional = any("Positional" in note or "POSITIONAL" in note for note in annotations)
    metavar = _given_metavar(hint) or _metavar(hint, field.name if positional else None)
    name = "--" + field.name.replace("_", "-")
    if positional:
        usage = metavar
    elif hint is bool:  # a bool that may be None takes a value
        usage = f"--no-{name[2:]}" if field.default is True else name
    else:
        usage = f"{name} {metavar}"
    if field.default is True:
        text = f"Do not {text[0].lower()}{text[1:]}" if text else text
    return Flag(field.name, usage, text + _default(field, positional), positional)


def _default(field: dataclasses.Field[Any], positional: bool) -> str:
    default = field.default
    if default is dataclasses.MISSING and not positional and field.default_factory is dataclasses.MISSING:
        return " Required."
    if default in (None, "", ()) or isinstance(default, bool) or default is dataclasses.MISSING:
        return ""
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    return f" (default: {shown})"


def _given_metavar(hint: Any) -> str | None:
    found = (getattr(note, "metavar", None) for note in getattr(hint, "__metadata__", ()))
    return next((metavar for metavar in found if metavar), None)


def _plain(hint: Any) -> Any:
    """A type without `Annotated` and without `| None`."""
    while hasattr(hint, "__metadata__"):
        hint = hint.__origin__
    if get_origin(hint) in (types.UnionType, Union):  # Literal[...] | None is the latter
        (hint,) = [member for member in get_args(hint) if member is not type(None)][:1]
    return hint


def _metavar(hint: Any, name: str | None) -> str:
    hint = _plain(hint)
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, get_args(hint))) + "}"
    if hint is bool:
        return "{True,False}"
    if get_origin(hint) is tuple:
        return _metavar(get_args(hint)[0], name) + "..."
    return name.upper() if name else METAVARS.get(hint, "VALUE")


def _field_docstrings(kind: Any) -> dict[str, str]:
    """The string below each field, of `kind` and of the classes it derives from."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if "__dataclass_fields__" in vars(base):
            texts |= _docstrings_in(base)
    return texts


def _docstrings_in(kind: Any) -> dict[str, str]:
    """The string below each field of one class; empty for a class made by `make_dataclass`."""
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except OSError:
        return {}
    assert isinstance(node, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        text = getattr(getattr(below, "value", None), "value", None)
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(text, str):
            assert isinstance(field.target, ast.Name)
            texts[field.target.id] = " ".join(text.split())
    return texts

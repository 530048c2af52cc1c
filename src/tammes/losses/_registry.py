"""Losses from outside the package: registered by name, in plugin files or in installed packages."""

import importlib.util
import keyword
import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from tammes.losses.catalogue import TERM_NAMES
from tammes.losses.objective import PrototypeTerm, SampleTerm, Term

ENTRY_POINTS = "tammes.losses"
"""Entry-point group in which an installed package lists its losses."""

PLUGINS_VARIABLE = "TAMMES_PLUGINS"
"""Environment variable through which the command line hands its plugin files to worker processes."""

REGISTERED: dict[str, type[Term]] = {}
"""Names added by `register`; those of the catalogue are in `TERM_NAMES`."""

Kind = TypeVar("Kind", bound=type[Term])


def register(kind: Kind) -> Kind:
    """Make a custom loss available to `parse`, objective texts and the command line.

    `kind` is a frozen dataclass derived from `SampleTerm` or `PrototypeTerm`. It is registered under its
    `text_name` and under the name of the class. Returns `kind`, so it also works as a decorator.

    >>> from dataclasses import dataclass
    >>> from tammes import parse
    >>> from tammes.losses import Need, SampleTerm
    >>> @register
    ... @dataclass(frozen=True, kw_only=True)
    ... class Hinge(SampleTerm):
    ...     text_name = "Hinge"
    ...     margin: float = 0.2
    ...
    ...     @property
    ...     def need(self):
    ...         return Need("cosine", hardest=True)
    ...
    ...     def per_sample(self, scores, **own):
    ...         return (self.margin + scores.hardest - scores.target).clamp(min=0)
    >>> parse("CE + Hinge(m=0.3)")
    1 * CrossEntropy(normalize=False, scale=1.0, label_smoothing=0.0) + 1 * Hinge(margin=0.3)
    """
    _check_term(kind)
    for name in (kind.text_name, kind.__name__):
        holder = TERM_NAMES.get(name) or REGISTERED.get(name)
        if holder is not None and _place(holder) != _place(kind):  # a notebook cell may run again
            raise ValueError(
                f"The name {name!r} is taken by {'.'.join(_place(holder))}. Choose another text_name or "
                f"class name for {kind.__name__}."
            )
    REGISTERED.update({kind.text_name: kind, kind.__name__: kind})
    return kind


def _check_term(kind: type[Term]) -> None:
    """Check that `kind` has everything that the text form and the heads require of a term."""
    if not isinstance(kind, type) or not issubclass(kind, SampleTerm | PrototypeTerm):
        raise TypeError(
            f"register takes a class derived from SampleTerm or PrototypeTerm, got {kind!r:.200}."
        )
    parameters = vars(kind).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        raise TypeError(
            f"{kind.__name__} must be a frozen dataclass: decorate it with "
            "@dataclass(frozen=True, kw_only=True)."
        )
    text_name = getattr(kind, "text_name", None)
    if not isinstance(text_name, str) or not text_name.isidentifier() or keyword.iskeyword(text_name):
        raise TypeError(
            f"{kind.__name__}.text_name must be a Python identifier, got {text_name!r}. Add, for example, "
            f'text_name: ClassVar[str] = "{kind.__name__}".'
        )
    method = "per_sample" if issubclass(kind, SampleTerm) else "of_prototypes"
    base = SampleTerm if issubclass(kind, SampleTerm) else PrototypeTerm
    for name in ("need", method):
        if getattr(kind, name) is getattr(base, name):
            raise TypeError(f"{kind.__name__} must define {name}; see 'A new loss' in CONTRIBUTING.md.")


def _place(kind: type[Term]) -> tuple[str, str]:
    return kind.__module__, kind.__qualname__


def term_names() -> Mapping[str, type[Term]]:
    """Maps every name that the text form currently accepts to its class."""
    return TERM_NAMES | REGISTERED


def find_term(name: str) -> type[Term] | None:
    """The term called `name`; plugins are only loaded if nothing else has that name."""
    if name not in TERM_NAMES and name not in REGISTERED:
        load_handed_plugins()
        _load_installed_plugins()
    return term_names().get(name)


def load_plugin(path: str | Path) -> None:
    """Run a Python file that registers losses; this is the command line's `--plugin`. Once per file."""
    file = Path(path).resolve()
    if not file.is_file():
        raise FileNotFoundError(
            f"The plugin {path} does not exist. Pass a Python file that calls tammes.register."
        )
    name = f"tammes_plugin_{file.stem}"
    if name in sys.modules:
        loaded = getattr(sys.modules[name], "__file__", None)
        if loaded == str(file):
            return
        raise ValueError(f"Two plugins are called {file.name}: {loaded} and {file}. Rename one of them.")
    before = set(REGISTERED)
    _run(file, name)
    if set(REGISTERED) == before:
        raise ValueError(f"The plugin {path} registers no loss. Call tammes.register(MyLoss) in it.")


def _run(file: Path, name: str) -> ModuleType:
    """Import `file` under `name`, so that its classes can be pickled."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"The plugin {file} is not a Python file: its name must end in .py.")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        del sys.modules[name]
        raise ValueError(f"The plugin {file} failed: {type(error).__name__}: {error}") from error
    return module


def hand_on_plugins(paths: list[str]) -> None:
    """Load plugin files here, and in every worker process started from now on."""
    for path in paths:
        load_plugin(path)
    if paths:
        os.environ[PLUGINS_VARIABLE] = os.pathsep.join(str(Path(path).resolve()) for path in paths)


def load_handed_plugins() -> None:
    """Load the plugin files passed on by a parent process."""
    for path in filter(None, os.environ.get(PLUGINS_VARIABLE, "").split(os.pathsep)):
        load_plugin(path)


@cache
def _load_installed_plugins() -> None:
    """Register the losses of installed packages. An entry point names a term or a module that registers."""
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            found = entry.load()
            if not isinstance(found, ModuleType):
                register(found)
        except Exception as error:  # a broken package must not hide which one it is
            raise ValueError(
                f"The entry point {entry.name!r} = {entry.value!r} in the group {ENTRY_POINTS!r} failed: "
                f"{type(error).__name__}: {error}"
            ) from error

"""Lazy imports: the names of a package are imported on first use (PEP 562).

A package lists its names once, as plain imports in the `__init__.pyi` next to its `__init__.py`. Type
checkers and editors read that file. At run time this module reads the same imports, so `import tammes` takes
milliseconds and using a name imports only what its module needs.
"""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def exports(package: str, init: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of `package`, whose `__init__.py` is the file `init`."""
    home = _imports(Path(init).with_suffix(".pyi"))

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = home[name]
        return importlib.import_module(module) if original is None else _member(module, original)

    names = sorted(home)
    return get, lambda: names, names


def _member(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _imports(stub: Path) -> dict[str, tuple[str, str | None]]:
    """Map each name imported by `stub` to its module and its name there (None: the module itself)."""
    home: dict[str, tuple[str, str | None]] = {}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                is_room = node.module == "tammes"
                module = f"tammes.{alias.name}" if is_room else node.module
                home[alias.asname or alias.name] = (module, None if is_room else alias.name)
    return home

"""Layout: imports point downwards, and `import tammes` imports little."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tammes
from tammes.lab.cli import reproduce
from tammes.losses.catalogue import TERM_NAMES

SOURCE = Path(tammes.__file__).parent

LIBRARY = {
    "_common": set(),
    "geometry": {"_common"},
    "losses": {"_common", "geometry"},
    "heads": {"_common", "geometry", "losses"},
    "metrics": {"_common", "geometry"},
    "theory": {"_common", "geometry", "losses"},
}
LAB = {
    "lab.record_stamp": set(),
    "lab.adapters": set(),
    "lab.data": set(),
    "lab.models": set(),
    "lab.training": {"lab.record_stamp", "lab.data", "lab.models"},
    "lab.inference": {"lab.record_stamp", "lab.data", "lab.models", "lab.training"},
    "lab.report": {"lab.record_stamp"},  # records only, never training
    "lab.recipes": {"lab.record_stamp", "lab.data", "lab.models", "lab.training", "lab.report"},
    "lab.cli": {
        "lab.record_stamp",
        "lab.data",
        "lab.models",
        "lab.training",
        "lab.inference",
        "lab.recipes",
        "lab.report",
    },
}
BELOW = LIBRARY | {room: rooms | set(LIBRARY) | {"__init__"} for room, rooms in LAB.items()}
BELOW |= {"__init__": {"_common"}, "__main__": {"lab.cli"}}
"""For each room the rooms it may import from: _common <- geometry <- losses <- heads; the lab above all."""


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(parts: Sequence[str]) -> str:
    """The room of a dotted path inside the package: its first part, in the lab its first two."""
    if parts[0] == "lab":
        return ".".join(parts[:2]) if ".".join(parts[:2]) in BELOW else "lab"
    return parts[0] if parts[0] in BELOW else "__init__"


def rooms_imported(tree: ast.AST) -> Iterator[str]:
    """The rooms that a module imports from, even inside a function; `__init__` for the public face."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            package, *path = name.split(".")
            if package == "tammes":
                yield room_of(path or ["__init__"])


@pytest.mark.parametrize("module", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downwards(module):
    room = room_of(module.relative_to(SOURCE).with_suffix("").parts)
    upward = set(rooms_imported(ast.parse(module.read_text()))) - BELOW.get(room, set()) - {room}
    assert not upward, f"{module.name} in {room} imports from {upward}"


def test_the_imports_of_the_rooms_have_no_circle():
    """As the modules have them, whatever `BELOW` allows."""
    found: dict[str, set[str]] = {}
    for module in modules():
        room = room_of(module.relative_to(SOURCE).with_suffix("").parts)
        found.setdefault(room, set()).update(set(rooms_imported(ast.parse(module.read_text()))) - {room})
    assert len(list(TopologicalSorter(found).static_order())) >= len(BELOW)


def test_every_room_is_in_the_order():
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"} - {"lab"}
    labs = {f"lab.{path.stem}" for path in (SOURCE / "lab").iterdir() if not path.name.startswith("__")}
    assert rooms == set(LIBRARY)
    assert labs == set(LAB)


def test_the_library_never_imports_the_lab():
    for room in LIBRARY:
        for module in (SOURCE / room).rglob("*.py"):
            assert not [name for name in rooms_imported(ast.parse(module.read_text())) if "lab" in name], (
                module
            )


HEAVY = {
    "scipy",
    "sklearn",
    "torchvision",
    "timm",
    "PIL",
    "matplotlib",
    "jinja2",
    "rich",
    "tyro",
    "safetensors",
    "onnx",
    "onnxscript",
    "tensorboard",
    "pandas",
    "pytorch_metric_learning",
    "torch.distributed.tensor",
    "torch._dynamo",
    "torch._inductor",
}


def modules_after(code: str) -> set[str]:
    code = f"import json, sys; {code}; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout))


def test_importing_tammes_imports_not_even_torch():
    loaded = modules_after("import tammes; dir(tammes); tammes.__version__")
    assert not loaded & (HEAVY | {"torch", "numpy"})


def test_using_a_head_pulls_torch_and_little_else():
    loaded = modules_after("import tammes; tammes.PrototypeHead(4, 3, tammes.CosFace(scale=8, margin=0.2))")
    assert {"torch", "tammes.heads.prototype"} <= loaded
    assert not loaded & HEAVY
    assert not [name for name in loaded if name.startswith("tammes.lab")]


def third_party(tree: ast.AST) -> set[str]:
    """Packages outside of the standard library that a module imports, even inside a function."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [
        name
        for node in imports
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    ]
    return {str(name).partition(".")[0] for name in names} - sys.stdlib_module_names - {"tammes"}


OPTIONAL = {SOURCE / "_common" / "threads.py": {"threadpoolctl"}}
"""Packages that a module of the library uses if they are installed, and does without otherwise."""


def test_the_library_imports_only_what_the_base_install_brings():
    pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    brought = {re.split(r"\W", line)[0] for line in pyproject["project"]["dependencies"]}
    for room in LIBRARY:
        for module in (SOURCE / room).rglob("*.py"):
            needed = third_party(ast.parse(module.read_text())) - OPTIONAL.get(module, set())
            assert needed <= brought, module


LAB_PACKAGES = ["torchvision", "timm", "huggingface_hub", "sklearn", "tyro", "rich", "matplotlib", "jinja2"]

SAVE_AND_LOAD = """
import sys
sys.modules.update(dict.fromkeys({lab} + ["PIL"]))  # importing one of them now fails
import torch
from tammes import PrototypeHead, export_head, load_head, save_head, parse
head, other = (PrototypeHead(4, 3, parse("CosFace(s=8, m=0.2)")) for _ in range(2))
save_head({folder!r} + "/head", head)
load_head({folder!r} + "/head", other)
export_head({folder!r} + "/head", {folder!r} + "/head.npy")
assert torch.equal(head.weight, other.weight)
"""


def test_heads_are_saved_without_the_lab_extra(tmp_path):
    code = SAVE_AND_LOAD.format(lab=LAB_PACKAGES, folder=str(tmp_path))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_face_has_what_a_user_of_the_library_needs():
    measures = {"class_margin", "sample_margins", "gamma_min", "gamma_per_class", "neural_collapse"}
    heads = {"PrototypeHead", "ShardedPrototypeHead", "RowSGD", "RowAdamW", "save_head", "load_head"}
    others = {"clip_grad_norm_", "parse", "suggest_scale", "MixedLabels", "pack", "simplex", "free_features"}
    losses = {kind.__name__ for kind in tammes.losses.CATALOGUE}
    assert measures | heads | others | losses | {"largest_class_margin"} <= set(dir(tammes))


ROOMS = [tammes, *(getattr(tammes, room) for room in LIBRARY if room != "_common")]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_every_exported_name_is_there_and_is_what_it_says(room):
    for name in room.__all__:
        value = getattr(room, name)
        if not inspect.ismodule(value):
            assert getattr(value, "__name__", name) == name or TERM_NAMES.get(name) is value


LAZY_LABS = [
    importlib.import_module(f"tammes.lab.{room}")
    for room in ("adapters", "data", "models", "training", "report")
]


@pytest.mark.parametrize("room", [*ROOMS, *LAZY_LABS], ids=lambda room: room.__name__)
def test_no_module_bears_the_name_of_an_exported_name(room):
    """Importing the module later would replace the name."""
    inside = Path(room.__file__).parent
    modules = {path.stem for path in inside.iterdir() if path.stem != "__init__"}
    rooms = {name for name in room.__all__ if inspect.ismodule(getattr(room, name))}
    assert not modules & (set(room.__all__) - rooms)


def test_a_module_name_stands_once():
    """Except for a command in `lab/cli` and the module that it calls."""
    places: dict[str, list[str]] = {}
    for path in modules():
        name = str(path.relative_to(SOURCE))
        if not path.stem.startswith("__") and not name.startswith("lab/cli/"):
            places.setdefault(path.stem, []).append(name)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_the_tests_mirror_the_rooms():
    """Each room has a folder of tests; `theorems` has those of `theory`."""
    tests = Path(__file__).parent
    rooms = [room.replace(".", "/") for room in [*LIBRARY, *LAB] if room != "lab.record_stamp"]
    folders = {room: "theorems" if room == "theory" else room for room in rooms}
    assert [room for room, folder in folders.items() if not list((tests / folder).glob("test_*.py"))] == []
    others = {"distributed", "examples", "typing", "theorems"}
    found = {str(path.parent.relative_to(tests)) for path in tests.rglob("test_*.py")} - {".", "lab"}
    assert found - set(folders.values()) - others == set()


def test_every_module_is_used():
    """Imported by another one, exported by its room, or named as a command."""
    tables = {f"tammes.lab.recipes.{name}" for name in reproduce.TABLES}
    texts = {path: path.read_text() for suffix in ("py", "pyi") for path in SOURCE.rglob(f"*.{suffix}")}
    unused = []
    for module in modules():
        if module.stem.startswith("__"):
            continue
        room, name = module.parent.relative_to(SOURCE).parts, module.stem
        dotted = ".".join(["tammes", *room, name])
        package = rf"from {re.escape('.'.join(['tammes', *room]))} import [^\n]*\b{name}\b"
        others = [text for path, text in texts.items() if path != module]
        if not any(re.search(rf"{re.escape(dotted)}\b|{package}", text) for text in others):
            unused.append(dotted)
    assert set(unused) - tables == set()


def names_defined(tree: ast.Module) -> Iterator[str]:
    """Names at the top level of a module, without type variables."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and "TypeVar" not in ast.unparse(node.value):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def names_imported(tree: ast.AST) -> Iterator[str]:
    """Names that a module imports from another one of this package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tammes"):
            yield from (alias.name for alias in node.names)


PARALLEL = "lab/recipes/"
"""One file per table, each with its `table`, `variants`, `printed` and constants of its own."""


def test_a_name_is_defined_once():
    """Functions, classes and types; of constants those that other modules import."""
    trees = {str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in modules()}
    imported = {name for tree in trees.values() for name in names_imported(tree)}
    places: dict[str, set[str]] = {}
    for path, tree in trees.items():
        for name in names_defined(tree):
            if not name.startswith("_") and (name in imported or not name.isupper()):
                places.setdefault(name, set()).add(PARALLEL if path.startswith(PARALLEL) else path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def public_definitions(module: Path) -> Iterator[str]:
    """Functions and classes of a module without an underscore."""
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


@pytest.mark.parametrize("room", [room for room in LIBRARY if room != "_common"])
def test_what_a_public_module_defines_is_exported(room):
    """Internals start with an underscore, or live in a module that does."""
    exported = set(importlib.import_module(f"tammes.{room}").__all__)
    if room == "losses":
        exported |= set(importlib.import_module("tammes.losses.functional").__all__)
    for module in sorted((SOURCE / room).glob("[!_]*.py")):
        assert set(public_definitions(module)) <= exported, module.name

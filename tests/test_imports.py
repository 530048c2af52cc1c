"""Rooms: imports point downwards, and `import tammes` pulls torch and little else."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tammes

SOURCE = Path(tammes.__file__).parent

BASE = {"types", "checks", "threads", "memory"}
BELOW: dict[str, set[str]] = {
    "types": set(),
    "checks": {"types"},
    "threads": set(),
    "memory": set(),
    "provenance": BASE,
    "geometry": BASE,
    "data": BASE,
    "models": BASE,
}
BELOW["metrics"] = BELOW["losses"] = BASE | {"geometry"}
BELOW["theory"] = BELOW["heads"] = BELOW["losses"] | {"losses"}
BELOW["__init__"] = BELOW["heads"] | {"heads", "theory", "metrics"}  # the public face
BELOW["training"] = BELOW["__init__"] | {"__init__", "data", "models", "provenance"}
BELOW["recipes"] = BELOW["training"] | {"training"}
BELOW["report"] = BELOW["training"] - {"data", "models"}  # records only, never training
BELOW["cli"] = set(BELOW)
"""For each room the rooms it may import from: geometry <- losses <- heads <- training <- recipes <- cli."""


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(module: Path) -> str:
    return module.relative_to(SOURCE).parts[0].removesuffix(".py")


def rooms_imported(tree: ast.AST) -> Iterator[str]:
    """The rooms that a module imports from, be it inside a function; `__init__` for the public face."""
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
                yield path[0] if path and path[0] in BELOW else "__init__"


@pytest.mark.parametrize("module", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downwards(module):
    room = room_of(module)
    assert room in BELOW, f"a new room: say in {Path(__file__).name} which ones it may import from"
    upward = set(rooms_imported(ast.parse(module.read_text()))) - BELOW[room] - {room}
    assert not upward, f"{module.name} in {room} imports from {upward}"


def test_the_order_of_rooms_has_no_circle():
    order = ["geometry", "losses", "heads", "training", "recipes", "cli"]
    for place, room in enumerate(order):
        assert not BELOW[room] & set(order[place:])
        assert BELOW[room] >= set(order[:place])


HEAVY = {
    "scipy",
    "sklearn",
    "torchvision",
    "timm",
    "PIL",
    "matplotlib",
    "plotly",
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


def test_importing_tammes_pulls_torch_and_little_else():
    code = "import json, sys, tammes; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(run.stdout))
    assert {"torch", "tammes.heads.prototype"} <= loaded
    assert not loaded & HEAVY
    rooms = {name.split(".")[1] for name in loaded if name.startswith("tammes.")}
    assert not rooms & {"data", "models", "training", "recipes", "report", "cli"}


def test_every_public_name_is_there():
    assert all(hasattr(tammes, name) for name in tammes.__all__)
    face = {"PrototypeHead", "MixedLabels", "parse", "suggest_scale", "class_margin", "sample_margins"}
    assert face | {"gamma_min", "gamma_per_class"} <= set(tammes.__all__)

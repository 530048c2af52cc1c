"""Pages run as written, and name nothing that does not import.

The Python blocks of a page run one after the other in one process. What a block takes for granted
stands before it in a comment that readers do not see:

    <!-- python
    backbone = torch.nn.Linear(8, 4)
    -->
"""

import ast
import importlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tammes

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OUTSIDE = [path for room in ("benchmarks", "examples", "tools") for path in (ROOT / room).rglob("*.py")]
SOURCES = sorted([*Path(tammes.__file__).parent.rglob("*.py"), *OUTSIDE])
BLOCK = re.compile(r"^( *)(?:```|<!-- )python\n(.*?)^ *(?:```|-->)", re.DOTALL | re.MULTILINE)
DOTTED = re.compile(r"(?<![\w./-])tammes(?:\.[A-Za-z_]\w*)+(?![\w/]|\.\w)")
SHORT = re.compile(r"`((?:geometry|losses|heads|metrics|theory|lab)\.[A-Za-z_]\w*(?:\.\w+)*)[`(]")
"""A name in code that starts with a room: `geometry.pack(k, d)`."""
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MPLBACKEND": "Agg"}
"""What `torchrun` tells a single process, for pages on several; figures are drawn but not shown."""


def python_blocks(text: str) -> list[str]:
    """The code between ```python and ```, and in comments that start with `<!-- python`."""
    return [re.sub(rf"^{indent}", "", code, flags=re.MULTILINE) for indent, code in BLOCK.findall(text)]


def test_blocks_are_found():
    text = "One:\n```python\na = 1\n```\n```sh\nmake\n```\n<!-- python\nb = a\n-->\n"
    text += "   ```python\n   c = b\n   ```\n"
    assert python_blocks(text) == ["a = 1\n", "b = a\n", "c = b\n"]


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def code_of(page: Path) -> str:
    """The Python of a page, or of a notebook."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return "\n".join(python_blocks(text))
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WITH_CODE = [page for page in (*PAGES, *NOTEBOOKS) if code_of(page)]


@pytest.fixture(scope="module")
def run_script() -> Iterator[Callable[[Path], dict[str, Any]]]:
    """Runs a script in its folder, in a process that has imported torch; gives its exit code and output."""
    runner = Path(__file__).with_name("page_runner.py")
    with subprocess.Popen(
        [sys.executable, str(runner)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout

        def run(script: Path) -> dict[str, Any]:
            environment = ALONE | {"MASTER_PORT": str(free_port())}
            request = {"script": str(script), "folder": str(script.parent), "environment": environment}
            print(json.dumps(request), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield run
        process.stdin.close()


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_runs_as_written(page, run_script, tmp_path):
    script = tmp_path / "page.py"
    script.write_text(code_of(page), encoding="utf-8")
    ended = run_script(script)
    assert ended["code"] == 0, ended["output"]


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.name)
def test_a_notebook_is_stored_with_its_output(page):
    """So that it can be read where nothing runs: `jupyter execute --inplace notebooks/*.ipynb`."""
    cells = [cell for cell in json.loads(page.read_text())["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert len(page.read_bytes()) < 400_000


def test_a_page_that_fails_is_seen_to_fail(run_script, tmp_path):
    script = tmp_path / "page.py"
    script.write_text("import torch\nprint('here')\nassert torch.ones(1) == 2\n")
    ended = run_script(script)
    assert ended["code"] == 1
    assert "here" in ended["output"]
    assert "AssertionError" in ended["output"]


def resolves(dotted: str) -> bool:
    """Whether `dotted` is a module, or a name that can be reached from one."""
    parts = dotted.split(".")
    for n in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for name in parts[n:]:
            if not hasattr(value, name):
                return False
            value = getattr(value, name)
        return True
    return False


def dotted_names(text: str) -> set[str]:
    """The dotted names of a text, from `tammes` on."""
    short = [f"tammes.{name}" for name in SHORT.findall(text) if not name.endswith((".py", ".json"))]
    return {*DOTTED.findall(text), *short}


def texts_in(source: Path) -> Iterator[str]:
    """Docstrings, messages and every other string of a module."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_names_are_told_apart():
    assert resolves("tammes.geometry.pack")
    assert resolves("tammes.PrototypeHead.predict")
    assert not resolves("tammes.geometry.unpack")
    assert not resolves("tammes.no_such_room")


def test_dotted_names_are_found():
    text = "`geometry.pack(k, d)`, tammes.heads.save_head, `losses.CosFace`; see `geometry.py`, tammes.lab."
    found = {"tammes.geometry.pack", "tammes.heads.save_head", "tammes.losses.CosFace", "tammes.lab"}
    assert dotted_names(text) == found


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_what_is_there(page):
    names = dotted_names(page.read_text(encoding="utf-8"))
    assert [name for name in sorted(names) if not resolves(name)] == []


def test_docstrings_and_messages_name_what_is_there():
    names = {name for source in SOURCES for text in texts_in(source) for name in dotted_names(text)}
    assert len(names) > 20
    assert [name for name in sorted(names) if not resolves(name)] == []


FILE = re.compile(r"`((?:\w+/)+\w+\.py)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_files_that_exist(page):
    """As in `losses/scores.py`, seen from the package or from the root of the checkout."""
    names = set(FILE.findall(page.read_text(encoding="utf-8"))) - {"losses/my_loss.py"}
    places = (ROOT, ROOT / "src", ROOT / "src" / "tammes")
    assert [name for name in sorted(names) if not any((place / name).is_file() for place in places)] == []

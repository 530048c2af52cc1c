"""A user's program passes mypy and pyright, and both find the mistakes in another."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tammes

HERE = Path(__file__).parent
PROGRAM, MISTAKES = HERE / "user_program.py", HERE / "user_mistakes.py"


def run(command: list[str], folder: Path) -> str:
    """The output of a type checker for the tested package, without user settings."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300).stdout


def mypy(folder: Path) -> str:
    pytest.importorskip("mypy", reason="mypy is not installed; the dev extra has it")
    (folder / "mypy.ini").write_text(f"[mypy]\nmypy_path = {source()}\nfollow_imports = silent\n")
    options = ["--config-file", "mypy.ini", "--python-executable", sys.executable]
    return run([sys.executable, "-m", "mypy", *options, str(PROGRAM), str(MISTAKES)], folder)


def pyright(folder: Path) -> str:
    """By basedpyright, the build of pyright that does not download its program when first run."""
    program = shutil.which("basedpyright", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("basedpyright is not installed; the dev extra has it")
    settings = f'{{"extraPaths": ["{source()}"], "typeCheckingMode": "standard"}}'
    (folder / "pyrightconfig.json").write_text(settings)
    options = ["--project", "pyrightconfig.json", "--pythonpath", sys.executable]
    return run([program, *options, str(PROGRAM), str(MISTAKES)], folder)


def source() -> Path:
    return Path(tammes.__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_the_program_passes_and_every_mistake_is_found(checker, tmp_path):
    printed = checker(tmp_path)
    found = {
        (name, int(line))
        for name, line in re.findall(r"(user_\w+\.py):(\d+)(?::\d+)?:? (?:- )?error", printed)
    }
    lines = MISTAKES.read_text().splitlines()
    wrong = {(MISTAKES.name, number) for number, line in enumerate(lines, 1) if "# wrong" in line}
    assert found == wrong, printed

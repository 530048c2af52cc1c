"""The README runs as written: its python blocks, one after the other, in one fresh process."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def python_blocks(text: str) -> list[str]:
    """The code between ```python and ```."""
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_blocks_are_found():
    text = "One:\n```python\na = 1\n```\n```sh\nmake\n```\n```python\nb = a\n\nc = b\n```\n"
    assert python_blocks(text) == ["a = 1\n", "b = a\n\nc = b\n"]


def test_the_readme_runs_as_written(tmp_path):
    text = README.read_text()
    assert text.startswith("# tammes")
    code = "\n".join(python_blocks(text))
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr

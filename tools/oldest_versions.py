"""Print the required packages at the oldest versions that pyproject.toml allows: torch==2.9.* ..."""

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def oldest(requirements: list[str]) -> list[str]:
    """
    >>> oldest(["torch>=2.9", "numpy>=1.26"])
    ['torch==2.9.*', 'numpy==1.26.*']
    """
    return [f"{name}=={version}.*" for name, version in (re.split(">=", line) for line in requirements)]


if __name__ == "__main__":
    lab = [line for line in PROJECT["optional-dependencies"]["lab"] if line.startswith("torchvision")]
    print(*oldest([*PROJECT["dependencies"], *lab]))

"""The examples run as they are, and do what they say."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def main_of(name: str):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


@pytest.mark.parametrize(
    ("name", "package"),
    [("timm_model", "timm"), ("lightning_module", "lightning"), ("huggingface_trainer", "transformers")],
)
def test_an_example_learns_the_digits(name, package):
    pytest.importorskip(package, reason=f"the example {name} needs {package}")
    assert main_of(name)() > 0.9


def test_losses_of_pytorch_metric_learning_are_ours_under_other_names():
    pytest.importorskip("pytorch_metric_learning")
    assert main_of("from_pytorch_metric_learning")() < 1e-4


def test_every_example_is_tested_and_listed():
    listed = (EXAMPLES / "README.md").read_text()
    tested = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for path in EXAMPLES.glob("*.py"):
        assert f"`{path.name}`" in listed
        assert f'"{path.stem}"' in tested

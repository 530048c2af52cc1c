"""What goes to PyPI and to a code host: one version, complete metadata, workflows that fit their schemas."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tammes

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_version_stands_in_one_place():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/tammes/__init__.py"
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert cited[1] == tammes.__version__


def test_the_newest_section_of_the_changelog_is_this_version():
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [section for section in sections if section != "Unreleased"]
    assert re.fullmatch(rf"{re.escape(tammes.__version__)} \(\d{{4}}-\d\d-\d\d\)", released[0])


def test_the_package_says_where_it_is_from():
    urls = PROJECT["project"]["urls"]
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= set(urls)
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]
    assert (Path(tammes.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("schema", ["github-workflows", "dependabot"], ids=str)
def test_workflows_fit_their_schema(schema):
    pytest.importorskip("check_jsonschema")
    files = {"github-workflows": WORKFLOWS, "dependabot": [ROOT / ".github" / "dependabot.yml"]}[schema]
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    run = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_workflow_that_does_not_fit_is_found_out(tmp_path):
    pytest.importorskip("check_jsonschema")
    (tmp_path / "bad.yml").write_text("name: x\non: push\njobs: {a: {steps: []}}\n")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    run = subprocess.run([*command, str(tmp_path / "bad.yml")], capture_output=True, text=True, check=False)
    assert run.returncode == 1


def test_the_oldest_torch_of_the_workflow_is_the_one_required():
    run = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "oldest_versions.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    (torch,) = [line for line in PROJECT["project"]["dependencies"] if line.startswith("torch>=")]
    assert f"torch=={torch.removeprefix('torch>=')}.*" in run.stdout.split()

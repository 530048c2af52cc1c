"""The transcript of docs/photos-transcript.md is what its command writes."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tammes.lab.cli import main

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "photos_transcript.py"
if not TOOL.is_file():
    pytest.skip("the tools are not part of an installed package", allow_module_level=True)


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("photos_transcript", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_every_step_as_the_command_writes_it(tool, tmp_path, monkeypatch):
    page = tool.PAGE.read_text()
    outputs = dict(re.findall(r"```\n\$ (.*?)\n(.*?)\n```", page, re.DOTALL))
    outputs["onnx_example"] = page.rstrip().rsplit("```\n", 1)[1].removesuffix("\n```")
    photographed = []
    monkeypatch.setattr(tool, "run", lambda command, folder: outputs[command])
    monkeypatch.setattr(tool, "photograph", photographed.append)
    checkout(tmp_path)
    assert page.endswith(tool.transcript(tmp_path))
    assert [path.name for path in photographed] == ["report.html"]
    for name, picture in tool.PICTURES.items():
        assert Image.open(ROOT / "docs" / "figures" / name).size == (picture.width, picture.height)


def test_its_example_gives_the_probability_of_predict(tool, tmp_path, monkeypatch, capsys):
    """Also for a large photo that lies on its side, which a small network sees decoded at a smaller scale."""
    pytest.importorskip("onnxruntime")
    random = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    for kind in ("a", "b"):
        Path("photos", kind).mkdir(parents=True)
        for i in range(4):
            rough = Image.fromarray(random.integers(0, 256, (40, 60, 3), dtype=np.uint8))
            exif = rough.getexif()
            exif[0x0112] = 6
            rough.resize((601, 450)).save(f"photos/{kind}/{i}.jpg", exif=exif)
    Path("new.jpg").write_bytes(Path("photos/a/0.jpg").read_bytes())
    words = ["photos", "--model", "cnn4", "--image-size", "32", "--epochs", "1", "--out", "runs/photos"]
    assert main(["train", *words]) == 0
    assert main(["export", "runs/photos", "--format", "onnx"]) == 0
    capsys.readouterr()
    assert main(["predict", "runs/photos", "new.jpg", "--top", "1"]) == 0
    predicted = capsys.readouterr().out.split("\t")[1].split()
    exec(compile(tool.ONNX, "example", "exec"), {})
    name, probability = capsys.readouterr().out.split()
    assert (name, float(probability)) == (predicted[0], pytest.approx(float(predicted[1]), abs=1.1e-3))


def checkout(folder):
    """Names and photos of two flowers, one of which is not chosen."""
    (folder / "cat_to_name.json").write_text('{"43": "sword lily", "50": "common dandelion"}')
    for place in ("train/43/b.jpg", "test/43/a.jpg", "train/50/a.jpg"):
        (folder / "flowers" / place).parent.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / "flowers" / place)


def test_the_photos_are_of_the_chosen_flowers(tool, tmp_path):
    checkout(tmp_path)
    tool.copy_photos(tmp_path, tmp_path / "photos")
    copied = sorted(str(p.relative_to(tmp_path / "photos")) for p in (tmp_path / "photos").rglob("*.*"))
    assert copied == ["sword-lily/a.jpg", "sword-lily/b.jpg"]

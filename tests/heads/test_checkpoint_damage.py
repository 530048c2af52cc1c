"""Flipped bits in head checkpoints are noticed by checksums; checkpoints without them stay readable."""

import json

import pytest
import torch

from tammes import PrototypeHead, export_head, load_head, save_head

CLASSES = [f"class {j}" for j in range(7)]


def new_head() -> PrototypeHead:
    return PrototypeHead(3, 7, "CosFace(s=8, m=0.2)")


@pytest.fixture
def folder(tmp_path):
    save_head(tmp_path / "head", new_head(), classes=CLASSES)
    return tmp_path / "head"


def flip(path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_in_the_rows_is_noticed(folder, tmp_path):
    (file,) = folder.glob("*.safetensors")
    for place in (-1, -40):  # the last rows; a safetensors file ends with its data
        flip(file, place)
        head = new_head()
        before = head.weight.detach().clone()
        with pytest.raises(ValueError, match=r"safetensors cannot be read: its checksum is wrong"):
            load_head(folder, head)
        assert torch.equal(head.weight, before)
        with pytest.raises(ValueError, match="its checksum is wrong"):
            load_head(folder, head, classes=CLASSES[::-1])
        with pytest.raises(ValueError, match="its checksum is wrong"):
            export_head(folder, tmp_path / "out.npy")
        flip(file, place)
        load_head(folder, head)


def test_a_changed_class_name_is_noticed(folder):
    path = folder / "head.json"
    path.write_text(path.read_text().replace("class 3", "class 8"))
    with pytest.raises(ValueError, match=r"head\.json cannot be read: its checksum is wrong"):
        load_head(folder, new_head())


@pytest.mark.parametrize("sums", [3, {"head.json": 3}, {}, {"head.json": ""}])
def test_damaged_checksums_are_refused(folder, sums):
    path = folder / "head.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sha256": sums}))
    with pytest.raises(ValueError, match=r"head\.json"):
        load_head(folder, new_head())


def test_a_checkpoint_written_before_checksums_is_read(folder):
    path, head, other = folder / "head.json", new_head(), new_head()
    load_head(folder, head)
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    path.write_text(json.dumps(manifest))
    load_head(folder, other)
    assert torch.equal(head.weight, other.weight)

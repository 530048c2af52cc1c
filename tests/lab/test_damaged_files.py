"""Every reader of files is given damaged ones: its errors name the file, and cost no time or memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WALK = Path(__file__).with_name("damage.py")
NAMES = (
    *("png", "jpeg", "gif", "webp", "tiff", "bmp", "ppm", "npz", "embeddings", "pairs.txt", "pairs.csv"),
    *("pairs.bin", "shots.csv", "list", "property", "train.idx", "train.rec", "ijbc_face_tid_mid.txt"),
    *("ijbc_template_pair_label.txt", "config.json", "config.json, used", "data.json", "weights", "best"),
    *("result.json", "margins.npz", "verification", "verification, used", "inspected"),
    *("state.pt", "log.jsonl", "record of a row", "head.safetensors", "head.pt", "head.npz", "names"),
    *("pretrained", "mnist images-idx3", "mnist labels-idx1", "toy", "limits", "page", "saved .json"),
    *("saved .safetensors", "points.npy", "points.txt", "hub config.json", "hub model.safetensors"),
)


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    words = [sys.executable, str(WALK), str(tmp_path_factory.mktemp("damage"))]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=environment)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, (done.returncode, [one["name"] for one in found], done.stderr[-3000:])
    return {one["name"]: one for one in found}


def test_no_reader_is_left_out(walked):
    assert set(walked) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_told_with_the_name_of_the_file(walked, name):
    found = walked[name]
    assert not found["complaints"], "\n".join(found["complaints"][:20])
    if name != "log.jsonl":  # whose damaged lines are left out with a warning
        assert found["read"] < found["count"]
    assert found["slowest"] < 10
    assert found["megabytes"] < 1000

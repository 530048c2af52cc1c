"""Training on a folder of photos does not hold the decoded photos."""

import platform
import subprocess
import sys

import pytest
from PIL import Image

HEIGHT, WIDTH, FEW, MANY = 1000, 1500, 10, 160
DECODED = MANY * HEIGHT * WIDTH * 3

TRAIN = """
import pathlib, resource, sys
from tammes.lab.training import Config, train

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

few, many, out = map(pathlib.Path, sys.argv[1:4])
common = {"model": "cnn4", "image_size": 32, "batch_size": 8, "epochs": 1, "workers": 0, "device": "cpu"}
peaks = []
for place, data in enumerate((few, many)):
    train(Config(data=str(data), augment_style=sys.argv[4], **common), out / str(place))
    peaks.append(peak())
print(peaks[1] - peaks[0])
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of a few and of many large photos, which are all the same file."""
    root = tmp_path_factory.mktemp("data")
    Image.new("RGB", (WIDTH, HEIGHT), (90, 120, 60)).save(root / "photo.jpg")
    for count in (FEW, MANY):
        for i in range(count):
            link = root / str(count) / ("left", "right")[i % 2] / f"{i}.jpg"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(root / "photo.jpg")
    return root / str(FEW), root / str(MANY)


@pytest.mark.skipif(platform.system() != "Linux", reason="ru_maxrss is in other units elsewhere")
@pytest.mark.parametrize("style", ["photos", "fast"])
def test_memory_does_not_grow_with_the_number_of_photos(folders, tmp_path, style):
    """Random crops read the files in every epoch; without them all images are held at the network's size."""
    command = [sys.executable, "-c", TRAIN, *map(str, folders), str(tmp_path), style]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < DECODED / 4

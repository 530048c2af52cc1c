"""A run on several processes equals one on a single process: DDP for the network, a sharded head."""

import os
import signal
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tammes.lab.training import Config, RunFolder, RunInterruptedError, train
from tammes.lab.training.monitor import read_log

# Ten steps an epoch; nine samples and five classes do not divide by two; no batch statistics.
NET: dict[str, Any] = {"model": "timm/test_vit", "image_size": 32, "embedding": 6, "batch_size": 9}
NET |= {"log_every": 5, "optimizer": "sgd"}


def words_of(stripes, out, **settings) -> list[str]:
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return ["train", stripes, "--out", str(out), "--resume", *flags]


def assert_close(one, two):
    one, two = RunFolder(one), RunFolder(two)
    for which in ("last", "best"):
        mine, theirs = one.weights(which), two.weights(which)
        for name in mine:
            torch.testing.assert_close(theirs[name], mine[name], rtol=0, atol=1e-6)
    assert one.result is not None
    assert two.result is not None
    mine, theirs = dict(one.result["metrics"]), dict(two.result["metrics"])
    ranks = [name for name in mine if name.startswith(("pairs_auc", "pairs_tar"))]
    for name in ranks:  # rank statistics of 15 x 15 pairs: rounding may swap two neighbors
        assert theirs.pop(name) == pytest.approx(mine.pop(name), abs=1.01 / 15)
    assert theirs == pytest.approx(mine, rel=1e-6, abs=1e-5)
    for mine, theirs in zip(read_log(one.log), read_log(two.log), strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], abs=1e-5)


def test_two_processes_under_torchrun_end_where_one_does(stripes, tmp_path):
    settings = NET | {"epochs": 1, "objective": "CosFace(s=8, m=0.1) + 0.5*R_sm + 10*R_w", "clip": 0.5}
    settings |= {"sampling": "balanced", "class_weights": "effective", "effective_beta": 0.9}
    settings |= {"reweight_from": 0.5}
    train(Config(data=stripes, **settings), tmp_path / "one")
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    command = [sys.executable, *launch, "-m", "tammes", *words_of(stripes, tmp_path / "two", **settings)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Run folder:") == 1
    assert_close(tmp_path / "one", tmp_path / "two")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank(place: int, size: int, port: int, words: list[str]) -> None:
    """`tammes` as one of `size` processes."""
    torch.set_num_threads(1)
    environment = {"RANK": place, "LOCAL_RANK": place, "WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in environment.items()}, MASTER_ADDR="127.0.0.1")
    from tammes.lab.cli import main

    os._exit(main(words))


def test_a_run_may_change_the_number_of_processes_when_it_resumes(processes, stripes, interrupt_at, tmp_path):
    """One process, then three (the last has one class), then one again; momentum is transferred."""
    settings = NET | {"epochs": 3, "lr": 0.05}
    config = Config(data=stripes, **settings)
    train(config, tmp_path / "whole")
    with pytest.raises(RunInterruptedError):
        train(config, tmp_path / "parts", sinks=[interrupt_at(5)])
    port = free_port()
    words = words_of(stripes, tmp_path / "parts", **settings)
    workers = [processes.Process(target=rank_until, args=(r, 3, port, words)) for r in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [130, 130, 130]
    checkpoint = RunFolder(tmp_path / "parts").checkpoint()
    assert checkpoint is not None
    assert checkpoint.name.endswith("15")
    train(config, tmp_path / "parts", resume=True)
    assert_close(tmp_path / "whole", tmp_path / "parts")


def rank_until(place: int, size: int, port: int, words: list[str]) -> None:
    """`rank`, the last of which is asked to stop at its fifteenth step."""
    from tammes.lab.training.engine import Engine

    step = Engine.step

    def step_and_stop(self, batch, number):
        if place == size - 1 and number == 12:
            signal.raise_signal(signal.SIGTERM)
        return step(self, batch, number)

    Engine.step = step_and_stop  # type: ignore[method-assign]
    rank(place, size, port, words)


def run_on_two(processes, words: list[str]) -> None:
    port = free_port()
    workers = [processes.Process(target=rank, args=(r, 2, port, words)) for r in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_two_processes_share_batches_of_people(processes, people, tmp_path):
    """Each mines its own triplets, so this is another run than one process's; both halves agree on it."""
    settings = {"image_size": 24, "model": "cnn4", "embedding": 8, "epochs": 2, "batch_size": 12}
    settings |= {"sampling": "identities", "images_per_person": 3, "triplet": 1.0, "lr": 0.01}
    run_on_two(processes, [*words_of(str(people), tmp_path / "run", **settings), "--neck"])
    result = RunFolder(tmp_path / "run").result
    assert result is not None
    assert result["metrics"]["mAP"] > 0.5


@pytest.fixture
def faces(tmp_path) -> str:
    """Five people of six images each, and pairs of them beside."""
    folder, random = tmp_path / "faces", np.random.default_rng(0)
    for person in range(5):
        (folder / f"p{person}").mkdir(parents=True)
        for i in range(6):
            pixels = random.integers(0, 60, (16, 16, 3)) + 40 * np.array([person, 4 - person, 2])
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"p{person}" / f"{i}.png")
    same = [f"p{j}/{i}.png,p{j}/{i + 1}.png,1" for j in range(5) for i in (0, 2, 4)]
    different = [f"p{j}/{i}.png,p{(j + 1) % 5}/{i}.png,0" for j in range(5) for i in (0, 2, 4)]
    (folder / "pairs.csv").write_text("\n".join(["first,second,same", *same, *different]))
    return str(folder)


def test_two_processes_learn_and_verify_faces_as_one_does(processes, faces, tmp_path):
    settings = NET | {"epochs": 1, "objective": "ArcFace(s=8, m=0.2) + 10*R_w", "lr": 0.01}
    settings |= {"schedule": "polynomial"}
    with pytest.warns(UserWarning, match="5 of the 5 people in pairs are also in the training set"):
        train(Config(data=faces, **settings), tmp_path / "one")
    run_on_two(processes, words_of(faces, tmp_path / "two", **settings))
    assert_close(tmp_path / "one", tmp_path / "two")
    result = RunFolder(tmp_path / "two").result
    assert result is not None
    assert {"pairs_accuracy", "pairs_auc", "pairs_eer"} <= result["metrics"].keys()


def test_two_processes_sample_classes(processes, stripes, tmp_path):
    """The checkpoint stores the sampler state, so that any world size can resume from it."""
    settings = NET | {"epochs": 8, "sample_rate": 0.5, "objective": "CosFace(s=8, m=0.1) + 10*R_w"}
    settings |= {"optimizer": "adamw"}
    run_on_two(processes, words_of(stripes, tmp_path / "run", **settings))
    folder = RunFolder(tmp_path / "run")
    assert folder.weights()["head.sampler._extra_state"][1] == 8 * (97 // 9)
    assert folder.result is not None
    assert folder.result["metrics"]["accuracy"] > 0.4  # of five classes

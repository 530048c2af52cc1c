import os
import resource

import pytest
import torch

from tammes.lab.training import Config, RunFolder, train
from tammes.lab.training.monitor import JsonLines, read_log, rewind
from tammes.lab.training.run_folder import next_folder


def test_a_folder_that_holds_another_run_is_refused(settings, tmp_path):
    train(settings(epochs=1), tmp_path / "run")
    before = (tmp_path / "run" / "result.json").read_bytes()
    with pytest.raises(FileExistsError, match="already contains a run"):
        train(settings(epochs=1), tmp_path / "run")
    difference = r"contains a run with lr=0.1, not 0.2; prototype_lr=0.1, not 0.2\. Choose"
    with pytest.raises(ValueError, match=difference):
        train(settings(epochs=1, lr=0.2), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "result.json").read_bytes() == before


def test_a_mistake_in_the_settings_leaves_no_folder(settings, tmp_path):
    mistakes = ({"model": "resnet19"}, {"data": "no.npz"}, {"device": "cuda:77"}, {"model": "timm/nonet"})
    for changes in mistakes:
        with pytest.raises((ValueError, FileNotFoundError)):
            train(settings(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made_is_a_clear_error(settings, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Cannot create the folder .*file/run: Not a directory"):
        train(settings(epochs=1), tmp_path / "file" / "run")


def test_a_folder_without_permission_is_a_clear_error(settings, tmp_path, monkeypatch):
    train(settings(epochs=1), tmp_path / "run")  # what is written stays

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match=r"Cannot write .*other/.lock: Permission denied"):
        train(settings(epochs=1), tmp_path / "other")


def train_with_little_room(config, out, limit, answers):
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        train(config, out, resume=True)
    except OSError as error:
        answers.put(str(error))
    else:
        answers.put("done")


def test_when_a_checkpoint_cannot_be_written_the_one_before_is_whole(processes, stripes, tmp_path):
    config = Config(data=stripes, model="cnn4", epochs=2, batch_size=16, optimizer="adamw")
    answers = processes.Queue()
    for limit in (20_000, 10**9):
        job = (config, tmp_path / "run", limit, answers)
        process = processes.Process(target=train_with_little_room, args=job)
        process.start()
        answer = answers.get(timeout=60)
        process.join()
        if limit == 20_000:
            assert "Cannot write" in answer
            assert "safetensors: File too large." in answer
            assert not list((tmp_path / "run").glob(".*"))
    assert answer == "done"
    result = RunFolder(tmp_path / "run").result
    assert result is not None
    assert result["epochs"] == 2


def test_a_checkpoint_with_code_in_it_is_not_run(settings, tmp_path):
    train(settings(epochs=1), tmp_path / "run")
    checkpoint = RunFolder(tmp_path / "run").checkpoint()
    assert checkpoint is not None
    (tmp_path / "run" / "result.json").unlink()
    torch.save({"run": Bomb(tmp_path / "exploded")}, checkpoint / "state.pt")
    (checkpoint / "manifest.json").unlink()  # as older versions wrote it
    with pytest.raises(ValueError, match=r"state.pt cannot be read"):
        train(settings(epochs=1), tmp_path / "run", resume=True)
    assert not (tmp_path / "exploded").exists()


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (type(self.path).touch, (self.path,))


def test_the_last_two_checkpoints_are_kept_and_the_last_is_the_one_of_the_largest_numbers(tmp_path):
    folder = RunFolder(tmp_path)
    for epoch, step in ((0, 1), (9, 2), (99_999, 10**9 - 1), (100_000, 10**9)):
        folder.save(f"checkpoint-{epoch:05d}-{step:09d}", {"w": torch.ones(3)}, {"step": step})
    (tmp_path / "checkpoint-copy").mkdir()
    left = [path.name for path in folder.checkpoints()]
    assert left == ["checkpoint-100000-1000000000", "checkpoint-99999-999999999"]
    assert folder.checkpoint() == tmp_path / left[0]
    assert {path.name for path in tmp_path.iterdir()} == {*left, "checkpoint-copy"}
    restored = folder.restore()
    assert restored is not None
    assert restored.state == {"step": 10**9}


def test_partial_files_of_a_killed_run_are_removed_on_resume(settings, tmp_path):
    out = tmp_path / "run"
    train(settings(epochs=1), out)
    (out / "result.json").unlink()
    for name in (".checkpoint-00000-000000001.tmp", ".checkpoint-00000-000000001.0123456789abcdef.tmp"):
        (out / name).mkdir()
        (out / name / "weights.safetensors").write_text("half")
    for name in (".best.safetensors.tmp", ".log.jsonl.0123456789abcdef.tmp"):
        (out / name).write_text("half")
    (out / ".report.html.0123456789abcdef.tmp").write_text("of another process")
    train(settings(epochs=1), out, resume=True)
    assert [path.name for path in out.glob(".*")] == [".report.html.0123456789abcdef.tmp"]


def test_a_log_forgets_what_comes_after_a_step_and_a_line_cut_short(tmp_path):
    log = JsonLines(tmp_path / "log.jsonl")
    for step in (1, 2, 3):
        log({"kind": "step", "step": step})
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"kind": "st')
    rewind(tmp_path / "log.jsonl", epoch=0, step=2)
    assert [r["step"] for r in read_log(tmp_path / "log.jsonl")] == [1, 2]


def test_a_log_forgets_evaluations_that_are_made_again(tmp_path):
    """A checkpoint at the last step of epoch 1, before its evaluation: that of epoch 0 at step 2 stays."""
    log = JsonLines(tmp_path / "log.jsonl")
    for kind, epoch, step in (("step", 0, 2), ("epoch", 0, 2), ("step", 1, 4), ("epoch", 1, 4)):
        log({"kind": kind, "epoch": epoch, "step": step})
    rewind(tmp_path / "log.jsonl", epoch=1, step=4)
    left = [(r["kind"], r["epoch"]) for r in read_log(tmp_path / "log.jsonl")]
    assert left == [("step", 0), ("epoch", 0), ("step", 1)]


def test_the_next_folder_is_free(tmp_path):
    (tmp_path / "digits-1").mkdir()
    assert next_folder(tmp_path / "digits") == tmp_path / "digits-2"

import json
import subprocess
import sys

import pytest
import torch

from tammes.lab import record_stamp


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A git repository whose committed file takes the place of the module."""
    source = tmp_path / "record_stamp.py"
    source.write_text("one")

    def git(*words):
        author = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    git("add", "record_stamp.py")
    git("commit", "-q", "-m", "one")
    monkeypatch.setattr(record_stamp, "__file__", str(source))
    record_stamp.commit.cache_clear()
    yield source, git
    record_stamp.commit.cache_clear()


def test_the_commit_is_named_and_a_change_makes_it_dirty(checkout):
    source, git = checkout
    head = git("rev-parse", "HEAD").stdout.decode().strip()
    assert record_stamp.commit() == head
    source.write_text("two")
    assert record_stamp.commit() == head  # of the source that was there first
    record_stamp.commit.cache_clear()
    assert record_stamp.commit() == f"{head}+dirty"


def test_a_result_that_was_just_written_is_no_change(checkout, tmp_path):
    _, git = checkout
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.json").write_text("1")
    git("add", "results")
    git("commit", "-q", "-m", "two")
    (tmp_path / "results" / "a.json").write_text("2")
    assert record_stamp.commit() == git("rev-parse", "HEAD").stdout.decode().strip()


def test_a_package_that_git_does_not_track_has_no_commit(checkout, tmp_path, monkeypatch):
    stray = tmp_path / "env" / "record_stamp.py"
    stray.parent.mkdir()
    stray.write_text("")
    monkeypatch.setattr(record_stamp, "__file__", str(stray))
    assert record_stamp.commit() is None


def test_a_stamp_has_the_command_without_folders_and_the_threads(monkeypatch, tmp_path):
    program, data = str(tmp_path / "bin" / "tammes"), str(tmp_path / "data")
    words = [program, "reproduce", "toy", "--losses", "LM-Softmax (mean)", "--data-root", data]
    monkeypatch.setattr(sys, "argv", [*words, f"--runs={tmp_path / 'runs'}", "--out", "my/results"])
    stamp = record_stamp.stamp(seconds=1.0)
    assert stamp["command"] == (
        "tammes reproduce toy --losses 'LM-Softmax (mean)' --data-root data --runs=runs --out my/results"
    )
    assert stamp["machine"]["threads"] == torch.get_num_threads()
    json.dumps(stamp)

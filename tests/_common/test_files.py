"""Writing: whole files, links and devices respected, nothing left behind, nothing guessable."""

import os
import re
import stat
import threading

import pytest

import tammes
from tammes._common import files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_takes_the_place_of_another_and_keeps_its_permissions(tmp_path):
    target = tmp_path / "new" / "page.html"
    files.write_text(target, "é")
    assert target.read_bytes() == "é".encode()
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask
    target.chmod(0o600)
    files.write_text(target, "b")
    assert target.read_text() == "b"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert names(target.parent) == ["page.html"]


def test_symbolic_links_are_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link"
    link.symlink_to("elsewhere/file")  # does not exist yet
    for text in ("a", "b"):
        files.write_text(link, text)
        assert link.is_symlink()
        assert (tmp_path / "elsewhere" / "file").read_text() == text
    assert names(tmp_path / "elsewhere") == ["file"]


def test_a_fifo_is_written_to_and_stays_one(tmp_path):
    fifo, read = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    files.write_bytes(fifo, b"through")
    reader.join(10)
    assert read == [b"through"]
    assert fifo.is_fifo()
    assert names(tmp_path) == ["fifo"]


def test_a_device_is_written_to_and_stays_one(tmp_path):
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        null.write_bytes(b"")
    except PermissionError:
        pytest.skip("only root makes devices, and not on every file system")
    files.write_bytes(null, b"gone")
    assert null.is_char_device()


def test_open_files_by_their_descriptor(tmp_path):
    """`--out /dev/stdout` where standard output is a pipe: the link names nothing that could be renamed."""
    back, forth = os.pipe()
    files.write_bytes(files.Path(f"/dev/fd/{forth}"), b"piped")
    os.close(forth)
    with os.fdopen(back, "rb") as pipe:
        assert pipe.read() == b"piped"


def test_links_planted_at_temporary_names_are_not_written_through(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for planted in (".page.html.tmp", ".page.html", f".page.html.{os.getpid()}"):
        (tmp_path / planted).symlink_to(victim)
    files.write_text(tmp_path / "page.html", "page")
    assert victim.read_text() == "precious"
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "known")
    (tmp_path / ".page.html.known.tmp").symlink_to(victim)
    with pytest.raises(OSError, match=r"Cannot write .*page.html: File exists"):
        files.write_text(tmp_path / "page.html", "other")
    assert victim.read_text() == "precious"
    assert (tmp_path / "page.html").read_text() == "page"


def test_no_two_temporary_names_are_alike_and_none_is_too_long(tmp_path):
    path = tmp_path / ("ä" * 120)
    assert len({files.temporary_name(path) for _ in range(100)}) == 100
    files.write_text(path, "x")
    assert names(tmp_path) == ["ä" * 120]


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    files.write_text(tmp_path / "file", "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match=r"Cannot write .*file: No space left on device\."):
        files.write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]
    with pytest.raises(OSError, match=r"Cannot write .*: Is a directory\."):
        files.write_text(tmp_path, "new")


def test_the_folder_is_flushed_after_the_rename(tmp_path, monkeypatch):
    order = []

    def fsync(descriptor):
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        order.append((kind, (tmp_path / "file").exists()))

    monkeypatch.setattr(files.os, "fsync", fsync)
    files.write_text(tmp_path / "file", "new")
    assert order == [("file", False), ("folder", True)]


def test_a_folder_appears_when_it_is_whole(tmp_path, monkeypatch):
    order = []

    def fsync(descriptor):
        order.append((os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")), made.exists()))

    made = tmp_path / "made"
    monkeypatch.setattr(files.os, "fsync", fsync)
    files.write_folder(made, {"a": b"1", "b": b"2"})
    assert sorted(order[:2]) == [("a", False), ("b", False)]
    assert [done for _, done in order[2:]] == [False, True]
    assert order[3][0] == tmp_path.name
    assert (made / "a").read_text() == "1"
    with pytest.raises(OSError, match=r"Cannot write .*made/c: Directory not empty"):
        files.write_folder(made, {"c": b"3"})
    assert names(tmp_path) == ["made"]
    assert names(made) == ["a", "b"]


def test_json_there_and_back(tmp_path):
    files.write_json(tmp_path / "a.json", {"a": [1]})
    assert (tmp_path / "a.json").read_text() == '{\n  "a": [\n    1\n  ]\n}\n'
    assert files.read_json(tmp_path / "a.json") == {"a": [1]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "a.json", float("nan"), allow_nan=False)
    for wrong in (b"\xff", b"{", b"[" * 100_000):
        (tmp_path / "a.json").write_bytes(wrong)
        with pytest.raises(ValueError, match=r"a\.json is not valid JSON"):
            files.read_json(tmp_path / "a.json")


WRITES = (
    r"os\.(replace|rename)|\.rename\(|mkstemp|NamedTemporary|save_file|\.savefig\((?!buffer)|\.open\(\"[wax]"
)
ALLOWED = {
    "_common/files.py",
    "lab/training/run_folder.py",  # renames what is damaged
    "lab/training/monitor.py",  # appends to the log
    "lab/data/insightface_records.py",  # packs images for tests and benchmarks
}


def test_nothing_else_writes_files():
    source = files.Path(tammes.__file__).parent
    found = {str(p.relative_to(source)) for p in source.rglob("*.py") if re.search(WRITES, p.read_text())}
    assert found <= ALLOWED

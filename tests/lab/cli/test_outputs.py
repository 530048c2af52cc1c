"""Output files: links and pipes are preserved, temporary names cannot be guessed."""

import os
import threading

import numpy as np
import pytest

from tammes import PrototypeHead, parse
from tammes.heads import save_head
from tammes.lab.cli import main


@pytest.fixture(scope="module")
def inputs(run, photos, tmp_path_factory):
    """What the commands read."""
    folder = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(0)
    np.savez(folder / "other.npz", embeddings=rng.normal(size=(30, 4)), labels=np.arange(30) % 3)
    save_head(folder / "head", PrototypeHead(4, 3, parse("NormFace(s=10)")))
    return {"run": run, "photos": photos, "npz": folder / "other.npz", "head": folder / "head"}


WRITERS = {
    "report": ("report {run} --out {out}", "page.html", b"<!doctype html>"),
    "inspect": ("inspect {npz} --out {out}", "page.html", b"<!doctype html>"),
    "embed": ("embed {run} {photos} --out {out}", "e.npz", b"PK"),
    "search": ("search {run} {photos}/red/0.png --gallery {photos} --out {out}", "s.png", b"\x89PNG"),
    "export": ("export {run} --format safetensors --to {out}", "m.safetensors", b""),
    "pack save": ("pack 3 2 --save {out}", "p.npy", b"\x93NUMPY"),
    "pack png": ("pack 4 3 --plot {out}", "p.png", b"\x89PNG"),
    "pack html": ("pack 4 3 --plot {out}", "p.html", b"<!doctype html>"),
    "head export": ("head export {head} {out}", "h.safetensors", b""),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_links_are_followed_and_pipes_are_written_to(writer, inputs, tmp_path):
    words, name, start = WRITERS[writer]
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for planted in (f".{name}", f".{name}.tmp", f".{name}.{os.getpid()}"):
        (tmp_path / planted).symlink_to(victim)
    (tmp_path / "target").mkdir()
    link, fifo = tmp_path / name, tmp_path / f"fifo-{name}"
    link.symlink_to(f"target/{name}")
    assert main([word.format(**inputs, out=link) for word in words.split()]) == 0
    assert link.is_symlink()
    written = (tmp_path / "target" / name).read_bytes()
    assert written.startswith(start)
    assert [p.name for p in (tmp_path / "target").iterdir()] == [name]
    assert victim.read_text() == "precious"

    os.mkfifo(fifo)
    piped = []
    reader = threading.Thread(target=lambda: piped.append(fifo.read_bytes()), daemon=True)
    reader.start()
    assert main([word.format(**inputs, out=fifo) for word in words.split()]) == 0
    assert fifo.is_fifo()
    reader.join(10)
    assert len(piped[0]) == pytest.approx(len(written), rel=0.01)

"""Image files that would start programs or take all memory."""

import io
import struct
import subprocess
import sys
import textwrap
import threading
import zlib

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from tammes.lab.data import images as images_module
from tammes.lab.data.image_folders import folder
from tammes.lab.data.images import MAX_PIXELS, Budget, read_image, try_read

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n%%Page: 1 1\nshowpage\n%%EOF\n"


def png(width: int, height: int, bits: int, color: int) -> bytes:
    """A PNG file of zeros, which compress a thousandfold, written row by row."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    row = bytes(1 + (width * channels * bits + 7) // 8)
    squeeze, parts = zlib.compressobj(9), []
    for _ in range(height):
        parts.append(squeeze.compress(row))
    parts.append(squeeze.flush())

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", b"".join(parts)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


@pytest.fixture
def ghostscript(monkeypatch):
    """Notes when Pillow would start Ghostscript."""
    started: list[str] = []

    def start(*_, **__):
        started.append("gs")
        raise OSError("started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", start)
    return started


def test_postscript_under_the_name_of_a_picture_starts_nothing(tmp_path, ghostscript):
    (tmp_path / "x.png").write_bytes(EPS)
    Image.open(tmp_path / "x.png").close()  # Pillow alone would take it
    reason = try_read(str(tmp_path / "x.png"), (8, 8))
    assert isinstance(reason, str)
    assert "cannot identify" in reason
    assert isinstance(try_read(io.BytesIO(EPS), (8, 8)), str)
    assert not ghostscript


def test_a_folder_with_postscript_in_it_skips_it(photos, ghostscript, caplog):
    (photos / "cat" / "000.png").write_bytes(EPS)
    dataset = folder(photos)
    assert len(dataset.train) + len(dataset.test) == 17
    assert "000.png" in caplog.text
    assert not ghostscript


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "MPO"])
def test_the_formats_of_photographs_are_read(form):
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 10, 10)).save(file, form)
    pixels = read_image(io.BytesIO(file.getvalue()), (4, 4))
    assert np.abs(pixels.astype(int) - (200, 10, 10)).max() < 8


@pytest.mark.parametrize("form", ["ICO", "PCX", "TGA", "JPEG2000", "ICNS", "SGI"])
def test_other_formats_are_not(form):
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, form)
    assert isinstance(try_read(io.BytesIO(file.getvalue()), (4, 4)), str)


def test_too_many_pixels_are_refused_before_they_are_decoded():
    reason = try_read(io.BytesIO(png(MAX_PIXELS // 1000 + 1, 1000, 1, 0)), (8, 8))
    assert isinstance(reason, str)
    assert "million pixels" in reason
    assert "scale it down" in reason.lower()


def test_a_large_jpeg_is_counted_as_it_is_decoded(monkeypatch):
    """At an eighth of its size, where a small picture is asked for."""
    monkeypatch.setattr(images_module, "MAX_PIXELS", 10_000)
    file = io.BytesIO()
    Image.new("RGB", (600, 400), (90, 90, 90)).save(file, "JPEG")
    assert isinstance(try_read(io.BytesIO(file.getvalue()), (16, 16)), np.ndarray)
    assert isinstance(try_read(io.BytesIO(file.getvalue()), (300, 300)), str)


MEASURE = """
    import io, resource, sys
    from concurrent.futures import ThreadPoolExecutor

    from tammes.lab.data import images
    from tammes._common.memory import keep_freed_memory

    keep_freed_memory()  # as the command line does
    times, budget = map(int, sys.argv[2:])
    images.IN_FLIGHT = images.Budget(budget)
    content = open(sys.argv[1], "rb").read()
    images.try_read(io.BytesIO(content[:64]), (8, 8))  # imports Pillow's plugins
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ThreadPoolExecutor(times) as pool:
        found = list(pool.map(lambda _: images.try_read(io.BytesIO(content), (8, 8)), range(times)))
    assert all(not isinstance(one, str) for one in found), found
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def megabytes(path, times: int, budget: int) -> float:
    """Peak memory of reading the file in several threads at once, in a new process."""
    words = [sys.executable, "-c", textwrap.dedent(MEASURE), str(path), str(times), str(budget)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return int(done.stdout) / 1000


def test_a_file_at_the_limit_takes_less_than_a_gigabyte(tmp_path):
    (tmp_path / "x.png").write_bytes(png(8000, MAX_PIXELS // 8000, 16, 0))
    assert (tmp_path / "x.png").stat().st_size < 500_000
    assert megabytes(tmp_path / "x.png", 1, 2**29) < 700


@pytest.mark.parametrize(("bits", "color"), [(16, 0), (8, 6)], ids=["16-bit grey", "transparent"])
def test_files_that_are_decoded_at_once_share_a_budget(tmp_path, bits, color):
    """Six of 48 MB each; without a budget they take more than 600 MB."""
    (tmp_path / "x.png").write_bytes(png(3000, 2000, bits, color))
    assert megabytes(tmp_path / "x.png", 6, 50_000_000) < 200


def test_a_budget_lets_one_in_that_is_larger_and_others_wait():
    budget, seen, lock = Budget(100), [], threading.Lock()
    inside = 0

    def work(cost: int) -> None:
        nonlocal inside
        with budget.reserve(cost):
            with lock:
                inside += cost
                seen.append(inside)
            with lock:
                inside -= cost

    threads = [threading.Thread(target=work, args=(cost,)) for cost in [40, 40, 500, 40, 100] * 20]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)
    assert len(seen) == 100
    assert max(seen) == 500

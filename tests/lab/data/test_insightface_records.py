"""insightface's record files: written and read back, and by a reader and a writer of the test's own."""

import io
import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from tammes.lab.data import Batches, load
from tammes.lab.data.insightface_records import MAGIC, Recorded, RecordFile, records, write_records

SIZE = (12, 10)


def encoded(color: int, form: str = "PNG", seed: int = 0) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 20, (*SIZE, 3))
    noise[..., color] += 200
    buffer = io.BytesIO()
    Image.fromarray(noise.astype(np.uint8)).save(buffer, form)
    return buffer.getvalue()


def faces(people: int = 3, each: int = 4) -> list[tuple[int, bytes]]:
    return [
        (j, encoded(j % 3, "PNG" if i % 2 else "JPEG", seed=10 * j + i))
        for j in range(people)
        for i in range(each)
    ]


def parts_of(content: bytes) -> list[tuple[int, int, bytes]]:
    """Start, flag and bytes of each part, walking through the file from its beginning."""
    found, at = [], 0
    while at < len(content):
        magic, word = struct.unpack("<II", content[at : at + 8])
        assert magic == 0xCED7230A
        flag, length = word >> 29, word % 2**29
        found.append((at, flag, content[at + 8 : at + 8 + length]))
        at += 8 + (length + 3) // 4 * 4
    return found


def independent_read(folder) -> dict[int, tuple[float, bytes]]:
    """Label and image of each key, by the description of the format alone."""
    starts = dict(line.split("\t") for line in (folder / "train.idx").read_text().splitlines())
    parts = parts_of((folder / "train.rec").read_bytes())
    found = {}
    for key, start in starts.items():
        first = next(i for i, (at, _, _) in enumerate(parts) if at == int(start))
        record = parts[first][2]
        while parts[first][1] in (1, 2):
            first += 1
            record += b"\x0a\x23\xd7\xce" + parts[first][2]
        flag, label, _, _ = struct.unpack("<IfQQ", record[:24])
        if flag:
            label = struct.unpack(f"<{flag}f", record[24 : 24 + 4 * flag])[0]
        found[int(key)] = (label, record[24 + 4 * flag :])
    return found


def independent_write(folder, samples: list[tuple[list[float], bytes]], *, classes: int) -> None:
    """As mxnet's tools do it: headers with one label or many, no record 0."""
    folder.mkdir()
    content, lines = b"", []
    for key, (labels, image) in enumerate(samples, 1):
        many = len(labels) > 1
        header = struct.pack("<IfQQ", len(labels) if many else 0, 0.0 if many else labels[0], key, 0)
        record = header + (struct.pack(f"<{len(labels)}f", *labels) if many else b"") + image
        lines.append(f"{key}\t{len(content)}\n")
        content += struct.pack("<II", 0xCED7230A, len(record)) + record + b"\0" * (-len(record) % 4)
    (folder / "train.rec").write_bytes(content)
    (folder / "train.idx").write_text("".join(lines))
    (folder / "property").write_text(f"{classes},{SIZE[0]},{SIZE[1]}")


def decoded(image: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))


def all_images(dataset) -> dict[int, list[bytes]]:
    """Pixels of every image by label, of both splits."""
    found: dict[int, list[bytes]] = {}
    for split in (dataset.train, dataset.test):
        for i in range(len(split)):
            found.setdefault(int(split.labels[i]), []).append(split.read(i).tobytes())
    return {label: sorted(images) for label, images in found.items()}


def test_what_is_written_is_read_back_here_and_by_an_independent_reader(tmp_path):
    samples = faces()
    write_records(tmp_path / "rec", samples, SIZE)
    theirs = independent_read(tmp_path / "rec")
    assert theirs.pop(0) == (len(samples) + 1, b"")
    assert list(theirs.values()) == samples
    dataset = records(tmp_path / "rec")
    expected = {j: sorted(decoded(b).tobytes() for k, b in samples if k == j) for j in range(3)}
    assert all_images(dataset) == expected
    assert dataset.shape == (3, *SIZE)
    assert dataset.classes == ("0", "1", "2")


@pytest.mark.parametrize("many", [False, True])
def test_files_of_an_independent_writer_with_one_or_many_labels(tmp_path, many):
    samples = faces()
    labeled = [([float(j), 7.0, 8.0] if many else [float(j)], image) for j, image in samples]
    independent_write(tmp_path / "rec", labeled, classes=3)
    dataset = load(tmp_path / "rec")
    assert len(dataset.train) + len(dataset.test) == len(samples)
    assert all_images(dataset) == {
        j: sorted(decoded(b).tobytes() for k, b in samples if k == j) for j in range(3)
    }


def test_images_that_hold_the_magic_number_are_cut_and_joined(tmp_path):
    word = MAGIC
    contents = [word, b"ab" + word, word + word + b"xyz", b"abcd" + word + b"e" * 5, b"12345678" + word]
    write_records(tmp_path / "rec", [(i, content) for i, content in enumerate(contents)], SIZE)
    flags = [flag for _, flag, _ in parts_of((tmp_path / "rec" / "train.rec").read_bytes())]
    assert flags == [0, 1, 3, 0, 1, 2, 3, 1, 3, 1, 3]  # only what lies at a multiple of four is cut
    assert [image for label, image in list(independent_read(tmp_path / "rec").values())[1:]] == contents
    file = RecordFile(tmp_path / "rec" / "train.rec")
    lines = (tmp_path / "rec" / "train.idx").read_text().splitlines()
    assert [file.unpack(int(line.split()[1]))[1] for line in lines[1:]] == contents


def test_workers_read_the_same_batches(tmp_path):
    write_records(tmp_path / "rec", faces(each=6), SIZE)
    dataset = load(tmp_path / "rec")
    pixels = []
    for workers in (0, 2):
        batches = Batches(dataset, "train", batch_size=5, training=True, workers=workers)
        pixels.append(torch.cat([batch.images for batch in batches.epoch(0)]))
    assert torch.equal(pixels[0], pixels[1])


def test_an_opened_file_travels_to_another_process(tmp_path):
    write_records(tmp_path / "rec", faces(), SIZE)
    split = load(tmp_path / "rec").train
    assert isinstance(split, Recorded)
    before = split.read(2)
    assert (pickle.loads(pickle.dumps(split)).read(2) == before).all()


@pytest.fixture
def stored(tmp_path):
    write_records(tmp_path / "rec", faces(), SIZE)
    return tmp_path / "rec"


def test_a_file_cut_short_is_named(stored):
    content = (stored / "train.rec").read_bytes()
    (stored / "train.rec").write_bytes(content[:-9])
    with pytest.raises(
        ValueError, match=r"Key 12 of train.idx: .*train.rec ends at byte \d+, within a record"
    ):
        load(stored)


def test_an_index_out_of_step_is_named(stored):
    lines = (stored / "train.idx").read_text().splitlines()
    key, start = lines[5].split("\t")
    (stored / "train.idx").write_text("\n".join([*lines[:5], f"{key}\t{int(start) + 4}", *lines[6:]]))
    with pytest.raises(
        ValueError, match=rf"Key {key} of train.idx: .* has no record at byte {int(start) + 4}"
    ):
        load(stored)


def test_labels_beyond_property_are_named(stored):
    (stored / "property").write_text("2,12,10")
    with pytest.raises(ValueError, match="key 9 has the label 2, but property says 2 identities"):
        load(stored)


def test_an_image_that_cannot_be_decoded_is_skipped_and_counted(tmp_path, caplog):
    samples = faces()
    samples[1] = (0, b"no image")
    write_records(tmp_path / "rec", samples, SIZE)
    dataset = load(tmp_path / "rec")
    seen = sum(
        len(batch.labels)
        for name in ("train", "test")
        for batch in Batches(dataset, name, batch_size=4, training=False, workers=0).epoch(0)
    )
    assert seen == len(samples) - 1
    assert "skipped unreadable image 1" in caplog.text
    assert "train.rec at byte" in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("property", "three,112,112", "must contain identities, height and width, as in 93431,112,112"),
        ("train.idx", "1 2 3\n", "must have a key and a byte offset"),
        ("train.idx", "one\ttwo\n", "Expected a key and a byte offset"),
        ("train.rec", "", "train.rec is empty"),
    ],
)
def test_other_contents_are_refused(stored, name, text, message):
    (stored / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        load(stored)

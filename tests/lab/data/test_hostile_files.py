"""Small files that would take all memory, hang, or reach outside of their folder."""

import io
import pickle
import re
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

from tammes.lab.data.arrays import read_arrays
from tammes.lab.data.face_sets import lfw_view1
from tammes.lab.data.identities import parsed
from tammes.lab.data.ijb_lists import read_ijb
from tammes.lab.data.insightface_records import records, write_records
from tammes.lab.data.pairs import read_pairs

LIMITED = """if True:
    import resource, signal, sys
    from pathlib import Path
    from tammes.lab.data.loading import load
    from tammes.lab.data.pairs import read_pairs
    resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.alarm(20)
    for path in map(Path, sys.argv[1:]):
        try:
            read_pairs(path) if path.suffix == ".bin" else load(path, root=path.parent)
        except (ValueError, OSError) as error:
            assert path.stem in str(error) or "property" in str(error), error
        else:
            raise SystemExit(f"{path} was read")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 300_000, f"{path} took {grown} kB"
"""
"""Reads each file with little memory and little time, and expects an error that names it."""


def bombs() -> dict[str, bytes]:
    """Pickles of a few bytes."""
    doubled = b"(" + b"I1\n" * 2 + b"t" + b"".join(b"2\x86" for _ in range(60))  # tuples of tuples
    return {
        "memo": b"\x80\x02]r\xff\xff\xff\x7f.",
        "memo in text": b"]p99999999999\n.",
        "memo of a gigabyte": b"\x80\x02]r" + struct.pack("<I", 2**26) + b".",
        "length": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"abc.",
        "frame": b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"].",
        "hash": b"\x80\x02}" + doubled + b"K\x01s.",
        "number": b"\x80\x02\x8b" + struct.pack("<i", 2**30) + b"1.",
        "digits": b"I" + b"9" * 1_000_000 + b"\n.",
        "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 2**36) + b"a.",
    }


def npy(shape: tuple[int, ...], dtype: str, content: bytes = b"") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + content


def archive(path, members: dict[str, bytes]):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def plain() -> dict[str, bytes]:
    images, labels = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1])
    found = {}
    for name, array in {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}.items():
        file = io.BytesIO()
        np.save(file, array)
        found[name] = file.getvalue()
    return found


def test_small_files_neither_take_memory_nor_time(tmp_path):
    paths = []
    for name, content in bombs().items():
        paths.append(tmp_path / f"{name.replace(' ', '_')}.bin")
        paths[-1].write_bytes(content)
    declared = {"shape": npy((10**10, 8, 8), "|u1"), "empty": npy((10**15, 0), "|u1")}
    declared["nothing"] = npy((10**12,), "|S0")
    for name, content in declared.items():
        paths.append(archive(tmp_path / f"{name}.npz", plain() | {"x_train": content}))
    paths.append(
        archive(tmp_path / "inflated.npz", plain() | {"x_train": npy((2**29,), "|u1", bytes(2**29))})
    )
    for kind in ("train", "test"):
        (tmp_path / f"classes_{kind}.txt").write_text("a.png 0\na.png 1000000000\n")
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    paths.append(tmp_path / "classes_train.txt")
    for name, text in {"many": "1000000000,8,8", "large": "2,1000000,1000000"}.items():
        write_records(tmp_path / name, [(0, b"a"), (0, b"b"), (1, b"c"), (1, b"d")], (8, 8))
        (tmp_path / name / "property").write_text(text)
        paths.append(tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *paths], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])


def test_an_array_that_nobody_asks_for_is_not_inflated(tmp_path):
    path = archive(tmp_path / "x.npz", plain() | {"unused": npy((2**29,), "|u1", bytes(2**29))})
    assert set(read_arrays(path, ("x_train",), ("y_test", "none"))) == {"x_train", "y_test"}
    with pytest.raises(ValueError, match=r"x\.npz would inflate to"):
        read_arrays(path)


@pytest.mark.parametrize("shape", [(2,), (4,), (2**20,), (-3,)])
def test_a_header_that_does_not_match_its_bytes_is_refused(shape, tmp_path):
    path = archive(tmp_path / "x.npz", {"x": npy(shape, "|u1", b"abc")})  # numpy would read the first two
    with pytest.raises(ValueError, match=r"x\.npz: x is declared as uint8 of shape .* has 3 bytes"):
        read_arrays(path)


def test_arrays_of_every_plain_kind_come_back(tmp_path):
    arrays = {
        "none": np.empty((0, 2, 112, 112, 3), np.uint8),
        "one": np.array(0.5),
        "text": np.array([["a", "ü"], ["", "b"]]),
        "turned": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "truth": np.array([True, False]),
        "swapped": np.arange(5, dtype=">i4"),
        "swapped_text": np.array(["a", "ü"]).astype(">U1"),
    }
    np.savez_compressed(tmp_path / "x.npz", **arrays)
    found = read_arrays(tmp_path / "x.npz")
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_text_that_is_none_is_refused(tmp_path):
    for letter in (0x110000, 0xD800):
        path = archive(tmp_path / "x.npz", {"names": npy((1,), "<U1", struct.pack("<I", letter))})
        with pytest.raises(ValueError, match=r"x\.npz: names holds text that cannot be decoded"):
            read_arrays(path)


@pytest.fixture
def ijb(tmp_path):
    meta = tmp_path / "IJBC" / "meta"
    meta.mkdir(parents=True)
    (tmp_path / "IJBC" / "loose_crop" / "inner").mkdir(parents=True)
    (meta / "ijbc_template_pair_label.txt").write_text("7 7 1\n")
    (tmp_path / "secret.jpg").write_bytes(b"")

    def read(name: str):
        (meta / "ijbc_face_tid_mid.txt").write_text(f"{name} 7 100\n")
        return read_ijb(tmp_path / "IJBC").images

    return read


def test_ijbs_lists_name_files_of_their_folder_alone(ijb, tmp_path):
    images = tmp_path / "IJBC" / "loose_crop"
    (images / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (images / "beside.jpg").symlink_to(images / "1.jpg")
    (images / "out").symlink_to(tmp_path)
    refused = (
        "../../secret.jpg",
        str(tmp_path / "secret.jpg"),
        "link.jpg",
        "out/secret.jpg",
        "inner/../../x",
    )
    for name in refused:
        with pytest.raises(ValueError, match=rf"names {re.escape(repr(name))}, which lies outside"):
            ijb(name)
    for name in ("1.jpg", "inner/2.jpg", "inner/../3.jpg", "beside.jpg"):
        assert ijb(name) == (str(images / name),)


def test_the_people_of_lfw_have_folders_of_its_own(tmp_path):
    home = tmp_path / "lfw" / "faces" / "Ann"
    home.mkdir(parents=True)
    for i in (1, 2):
        Image.new("RGB", (8, 8)).save(home / f"Ann_{i:04d}.jpg")
    (tmp_path / "lfw" / "pairsDevTest.txt").write_text("1\nAnn\t1\t2\nAnn\t1\tAnn\t2\n")
    for line in ("../../outside\t3", "Ann", "Ann\tmany", f"Ann\t{'9' * 5000}", "Nobody\t3"):
        (tmp_path / "lfw" / "peopleDevTrain.txt").write_text(f"1\n{line}\n")
        with pytest.raises(ValueError, match=r"peopleDevTrain\.txt"):
            lfw_view1(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "0\n"),
        ("a.txt", f"{'9' * 5000}\n"),
        ("a.txt", f"1\nAnn\t{'9' * 5000}\t1\nAnn\t1\tEve\t1\n"),
        ("a.txt", f"1\n{'A' * 5000}\t1\t1\nAnn\t1\tEve\t1\n"),
        ("a.csv", "first,second,same\na\0b,b,1\n"),
        ("a.csv", f"first,second,same\n{'a' * 200_000},b,1\n"),
        ("a.csv", "first,second,same,fold\na,b,1,99999999999999999999\n"),
        ("a.csv", "first,second,same\na\n"),
    ],
)
def test_numbers_and_names_beyond_reason_are_refused_with_the_list(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises((ValueError, OSError), match=re.escape(str(tmp_path / name))):
        read_pairs(tmp_path / name)


def test_a_list_that_is_no_text_is_named(tmp_path):
    for name in ("a.txt", "a.csv"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ValueError, match=re.escape(str(tmp_path / name))):
            read_pairs(tmp_path / name)


def test_people_and_cameras_of_more_than_64_bits_are_no_names(tmp_path):
    assert parsed(tmp_path / f"{'9' * 30}_c1.jpg") is None
    assert parsed(tmp_path / f"1_c{'9' * 30}.jpg") is None
    assert parsed(tmp_path / "0002_c1s1_000451_03.jpg") == (tmp_path / "0002_c1s1_000451_03.jpg", 2, 1)


def test_property_may_not_promise_more_people_than_there_are_images(tmp_path):
    write_records(tmp_path / "x", [(0, b"a"), (1, b"b")], (8, 8))
    (tmp_path / "x" / "property").write_text("3,8,8")
    with pytest.raises(ValueError, match=r"property gives 3 identities, but .*train\.idx has 2 images"):
        records(tmp_path / "x")


def test_pickles_of_real_lists_are_still_read(tmp_path):
    shared = b"x" * 300
    content = ([shared, shared, b"y", b"z"], [True, False])
    for protocol in (3, 4, 5):
        (tmp_path / "x.bin").write_bytes(pickle.dumps(content, protocol))
        assert read_pairs(tmp_path / "x.bin").images == (shared, shared, b"y", b"z")

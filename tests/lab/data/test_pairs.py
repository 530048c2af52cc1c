"""Lists of pairs: LFW's two forms, CSV, and pickles that must not run code."""

import io
import os
import pickle

import numpy as np
import pytest
from PIL import Image

from tammes.lab.data.pairs import read_pairs, shared_people


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def people(tmp_path):
    """Ann has three images, Bob two, Eve one; below lists/faces, beside the lists."""
    for person, count in (("Ann", 3), ("Bob", 2), ("Eve", 1)):
        folder = tmp_path / "lists" / "faces" / person
        folder.mkdir(parents=True)
        for i in range(1, count + 1):
            (folder / f"{person}_{i:04d}.png").write_bytes(picture(ord(person[0]) + i))
    return tmp_path / "lists"


def names(pairs) -> list[tuple[str, str, bool]]:
    stems = [os.path.basename(path).partition(".")[0] for path in pairs.images]
    ends = zip(pairs.first.tolist(), pairs.second.tolist(), pairs.same.tolist(), strict=True)
    return [(stems[i], stems[j], same) for i, j, same in ends]


def test_lfws_ten_folds_in_their_order(people):
    same, different = ["Ann\t1\t3", "Bob\t1\t2"], ["Ann\t2\tEve\t1", "Bob\t2\tAnn\t1"]
    (people / "pairs.txt").write_text(
        "\n".join(["2\t1", same[0], different[0], same[1], different[1]]) + "\n"
    )
    pairs = read_pairs(people / "pairs.txt")
    assert names(pairs) == [
        ("Ann_0001", "Ann_0003", True),
        ("Ann_0002", "Eve_0001", False),
        ("Bob_0001", "Bob_0002", True),
        ("Bob_0002", "Ann_0001", False),
    ]
    assert pairs.fold is not None
    assert pairs.fold.tolist() == [0, 0, 1, 1]
    assert pairs.people is not None
    assert [pairs.people[i] for i in pairs.second] == ["Ann", "Eve", "Bob", "Ann"]
    assert len(pairs.images) == 6 == len(set(pairs.images))


def test_lfws_view_1_has_no_folds(people):
    (people / "pairsDevTest.txt").write_text("1\nAnn\t1\t2\nAnn\t1\tBob\t2\n")
    pairs = read_pairs(people / "pairsDevTest.txt")
    assert names(pairs) == [("Ann_0001", "Ann_0002", True), ("Ann_0001", "Bob_0002", False)]
    assert pairs.fold is None
    assert shared_people(pairs, ["Bob", "Carl"]) == ["Bob"]


def test_a_csv_with_and_without_folds(people):
    (people / "mine.csv").write_text(
        "first,second,same,fold\nAnn/Ann_0001.png,Ann/Ann_0002.png,1,0\nAnn/Ann_0001.png,Eve/Eve_0001.png,false,3\n"
    )
    pairs = read_pairs(people / "mine.csv", people / "faces")
    assert names(pairs) == [("Ann_0001", "Ann_0002", True), ("Ann_0001", "Eve_0001", False)]
    assert pairs.fold is not None
    assert pairs.fold.tolist() == [0, 3]
    assert pairs.people == ("Ann", "Ann", "Eve")
    (people / "mine.csv").write_text("same,second,first\nno,Bob/Bob_0001.png,Ann/Ann_0001.png\n")
    assert read_pairs(people / "mine.csv").fold is None


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_insightfaces_bin_of_every_age(tmp_path, protocol):
    images, same = [picture(i) for i in range(6)], [True, False, True]
    content = pickle.dumps((images, same), protocol)
    if protocol < 3:  # Python 2 wrote its byte strings as such; Python 3 asks for a function to make them
        content = old_pickle(images, same)
    (tmp_path / "lfw.bin").write_bytes(content)
    pairs = read_pairs(tmp_path / "lfw.bin")
    assert pairs.images == tuple(images)
    assert pairs.same.tolist() == same
    assert (pairs.first.tolist(), pairs.second.tolist()) == ([0, 2, 4], [1, 3, 5])
    assert (pairs.read(3, (8, 8)) == np.asarray(Image.open(io.BytesIO(images[3])))).all()


def old_pickle(images: list[bytes], same: list[bool]) -> bytes:
    """Protocol 2 as Python 2 writes it: BINSTRING for `str`, NEWTRUE and NEWFALSE."""
    strings = b"".join(b"T" + len(image).to_bytes(4, "little") + image for image in images)
    truths = b"".join(b"\x88" if one else b"\x89" for one in same)
    return b"\x80\x02](" + strings + b"e](" + truths + b"e\x86."


class Hostile:
    """Unpickled in the usual way it makes a folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_that_would_run_code_is_refused_and_named(tmp_path):
    mark = tmp_path / "mark"
    for content in (Hostile(str(mark)), ([picture(0), Hostile(str(mark))], [True])):
        (tmp_path / "lfw.bin").write_bytes(pickle.dumps(content))
        with pytest.raises(ValueError, match=r"lfw\.bin is rejected: it asks to run code"):
            read_pairs(tmp_path / "lfw.bin")
        assert not mark.exists()
    pickle.loads((tmp_path / "lfw.bin").read_bytes())
    assert mark.exists()  # so the danger was real


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(([b"a"], [True])),
        pickle.dumps(([b"a", "b"], [True])),
        pickle.dumps(([b"a", b"b"], [1])),
        pickle.dumps({"images": []}),
        pickle.dumps(([], [])),
    ],
    ids=["one image", "text", "number", "dictionary", "nothing"],
)
def test_a_bin_of_anything_else_is_refused(tmp_path, content):
    (tmp_path / "lfw.bin").write_bytes(content)
    with pytest.raises(ValueError, match=r"lfw\.bin .* a list of encoded images.* a list of booleans"):
        read_pairs(tmp_path / "lfw.bin")


def test_a_bin_cut_short_and_an_unreadable_image_are_named(tmp_path):
    content = pickle.dumps(([picture(0), b"no image"], [True]))
    (tmp_path / "lfw.bin").write_bytes(content[:50])
    with pytest.raises(ValueError, match=r"lfw\.bin cannot be read: .*truncated"):
        read_pairs(tmp_path / "lfw.bin")
    (tmp_path / "lfw.bin").write_bytes(content)
    with pytest.raises(ValueError, match="lfw: image 1 cannot be read: UnidentifiedImageError"):
        read_pairs(tmp_path / "lfw.bin").read(1, (8, 8))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.txt",
            "1\nAnn\t1\t9\nAnn\t1\tEve\t7\n",
            r"a\.txt names 2 images that are not in .*: 'Ann/Ann_0009', 'Eve/Eve_0007'",
        ),
        (
            "a.txt",
            "2\nAnn\t1\t2\nAnn\t1\tEve\t1\n",
            "must have 1 x 2 same and as many different pairs, 4 lines",
        ),
        ("a.txt", "1\nAnn\t1\nAnn\t1\tEve\t1\n", "line 2: expected `person i j`"),
        ("a.txt", "Ann\t1\t2\n", "must start with the number of pairs"),
        ("a.csv", "one,two\n1,2\n", "needs the columns first,second,same"),
        ("a.csv", "first,second,same\na,b,perhaps\n", "line 2: expected two files and 1 or 0"),
        ("a.csv", "first,second,same\n", "has no pairs"),
        ("a.csv", "first,second,same\n../../secret.png,b,1\n", "which lies outside"),
        ("a.json", "{}", r"A pair list must end in \.txt, \.csv, \.bin"),
    ],
)
def test_bad_lists_are_named_with_the_place(people, name, text, message):
    (people / name).write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_pairs(people / name)


def test_a_list_that_is_not_there(people):
    with pytest.raises(FileNotFoundError, match=r"other\.txt does not exist"):
        read_pairs(people / "other.txt")

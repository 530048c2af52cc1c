import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tammes.lab.data import Batches, IdentitySet, load
from tammes.lab.data.identities import pictures
from tammes.metrics.retrieval import JUNK


def photograph(path: Path, value: int, size: tuple[int, int] = (12, 24)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 2 * value % 256, 255 - value)).save(path)


NAMES = {
    "bounding_box_train": ["0002_c1s1_01.png", "0002_c2s1_02.png", "0007_c1s1_03.png", "-1_c3s1_04.png"],
    "query": ["0004_c1s1_05.png", "0005_c4s1_06.png"],
    "bounding_box_test": ["0004_c2s1_07.png", "-1_c1s1_08.png", "0000_c2s1_09.png", "0005_c4s1_10.png"],
}


@pytest.fixture
def market(tmp_path) -> Path:
    """A root with ten images in the layout of Market-1501."""
    value = 0
    for folder, names in NAMES.items():
        for name in names:
            value += 10
            photograph(tmp_path / "Market-1501-v15.09.15" / folder / name, value)
    return tmp_path


def test_the_official_layout_is_read_by_its_names(market):
    data = load("market1501", root=market, image_size=24)
    assert isinstance(data, IdentitySet)
    assert data.classes == ("0002", "0007")  # junk is no one to learn from
    assert data.train.labels.tolist() == [0, 0, 1]
    assert data.shape == (3, 24, 12)  # one number is the height
    assert data.queries == 2
    names = sorted(NAMES["query"]) + sorted(NAMES["bounding_box_test"])
    assert data.test.labels.tolist() == [int(name.split("_")[0]) for name in names]
    assert data.cameras.tolist() == [int(name.split("_c")[1][0]) for name in names]
    assert JUNK in data.test.labels
    assert load("market1501", root=market).shape == (3, 256, 128)


def test_other_folders_with_such_names_do_too(market):
    official, there = load("market1501", root=market, image_size=24), market / "mine"
    (market / "Market-1501-v15.09.15").rename(there)
    (there / "bounding_box_train").rename(there / "train")
    (there / "bounding_box_test").rename(there / "gallery")
    mine = load(there, image_size=24)
    assert mine.name == "mine"
    assert torch.equal(mine.train.images, official.train.images)
    assert torch.equal(mine.test.images, official.test.images)


def test_one_plain_folder_is_split_by_people(tmp_path):
    for person in range(1, 10):
        for camera in (1, 2):
            for shot in range(2):
                photograph(tmp_path / "plain" / f"{person:04d}_c{camera}_{shot}.png", 9 * person)
    photograph(tmp_path / "plain" / "0008_c1_9.png", 3)
    photograph(tmp_path / "plain" / "0011_c1_0.png", 4)  # seen by one camera: nobody can find this person
    photograph(tmp_path / "plain" / "-1_c1_0.png", 5)
    data = load(tmp_path / "plain", image_size=24)
    assert data.classes == tuple(f"{person:04d}" for person in range(1, 8))
    assert data.test.labels[: data.queries].tolist() == [8, 9]
    assert sorted(data.test.labels[data.queries :].tolist()) == [-1, 8, 8, 8, 8, 9, 9, 9, 11]


def test_a_list_says_the_same_as_the_layout(market):
    official = load("market1501", root=market, image_size=24)
    roles = dict(zip(NAMES, ("train", "query", "gallery"), strict=True))
    with (market / "list.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "pid", "camera", "sequence", "role"])
        for folder, names in NAMES.items():
            for name in sorted(names):
                pid, camera = name.split("_c")
                place = f"Market-1501-v15.09.15/{folder}/{name}"
                writer.writerow([place, int(pid), int(camera[0]), 1, roles[folder]])
    listed = load(market / "list.csv", image_size=24)
    assert torch.equal(listed.test.images, official.test.images)
    assert torch.equal(listed.test.labels, official.test.labels)
    assert torch.equal(listed.cameras, official.cameras)
    assert listed.classes == official.classes


def test_images_are_stretched_not_cut(market):
    path = market / "Market-1501-v15.09.15" / "bounding_box_train" / "0002_c1s1_01.png"
    wide = np.zeros((10, 40, 3), np.uint8)
    wide[:, :10] = wide[:, 30:] = 255  # a cut to the center would lose the white ends
    Image.fromarray(wide).save(path)
    for limit in (2**30, 0):
        data = load("market1501", root=market, image_size=24, memory_limit=limit)
        first = pictures(data.train, np.array([0]))[0]
        assert first.shape == (24, 12, 3)
        assert (first[:, 0] == 255).all()
        assert (first[:, -1] == 255).all()
        assert (first[:, 6] == 0).all()


def test_sets_too_large_for_memory_give_the_same_batches(market):
    held, read = (load("market1501", root=market, image_size=24, memory_limit=limit) for limit in (2**30, 0))
    one, other = (
        next(Batches(data, "test", batch_size=6, training=False, workers=0).epoch(0)) for data in (held, read)
    )
    bytes_ = [
        batch.images * torch.tensor(data.std).view(3, 1, 1) + torch.tensor(data.mean).view(3, 1, 1)
        for batch, data in ((one, held), (other, read))
    ]
    torch.testing.assert_close(bytes_[0], bytes_[1], atol=1e-4, rtol=0)
    assert torch.equal(one.labels, other.labels)


def test_an_unreadable_query_leaves_people_and_cameras_in_step(market):
    (market / "Market-1501-v15.09.15" / "query" / "0004_c1s1_05.png").write_bytes(b"no image")
    data = load("market1501", root=market, image_size=24)
    assert data.queries == 1
    assert data.test.labels[0] == 5
    assert data.cameras[0] == 4
    assert len(data.test) == len(data.cameras) == 5


def test_wrong_names_are_counted_and_the_first_is_shown(market):
    folder = market / "Market-1501-v15.09.15" / "query"
    for name in ("b.png", "a.png", "12.png"):
        photograph(folder / name, 3)
    with pytest.raises(ValueError, match=r"3 of the 5 images in .*query are not named .* first is 12\.png"):
        load("market1501", root=market)


def test_what_is_missing_is_named(market, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"dukemtmc-reid is read from .*DukeMTMC-reID .*--data-root"):
        load("dukemtmc-reid", root=market)
    there = market / "Market-1501-v15.09.15"
    (there / "bounding_box_test").rename(there / "elsewhere")
    with pytest.raises(FileNotFoundError, match="no folder bounding_box_test or gallery"):
        load("market1501", root=market)
    (there / "gallery").mkdir()
    with pytest.raises(ValueError, match="gallery has no images"):
        load("market1501", root=market)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x.png,one,1,train", "line 2: pid and camera must be integers"),
        ("x.png,1,1,probe", "line 2: role must be one of train, query, gallery, got 'probe'"),
        ("../x.png,1,1,train", "line 2: ../x.png lies outside"),
        ("x.png", "line 2: pid and camera must be integers"),
        ("x.png,1,1,train", "list has no query images"),
    ],
)
def test_a_bad_line_of_a_list_is_named(tmp_path, line, message):
    (tmp_path / "list.csv").write_text(f"file,pid,camera,role\n{line}\n")
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "list.csv")


def test_a_list_without_its_columns_is_refused(tmp_path):
    (tmp_path / "list.csv").write_text("file,person\n")
    with pytest.raises(ValueError, match="missing: pid, camera, role"):
        load(tmp_path / "list.csv")


@pytest.mark.data
def test_market_itself(request):
    import os

    root = Path(os.environ.get("TAMMES_DATA", "")) / "market1501_train"
    if not (root / "index.csv").is_file():
        pytest.skip("needs market1501_train in the folder that TAMMES_DATA names")
    rows = list(csv.DictReader((root / "index.csv").open()))
    from tammes.lab.data.identities import parsed

    for row in rows:
        shot = parsed(Path(row["file"]))
        assert shot is not None
        assert (shot.person, shot.camera) == (int(row["pid"]), int(row["camera"]))

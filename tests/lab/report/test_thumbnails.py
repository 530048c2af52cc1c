"""Photos on a page: chosen, embedded once, within a budget."""

import dataclasses
import re

import numpy as np
import pytest

from tammes.lab.report import write_page
from tammes.lab.report.contents import page
from tammes.lab.report.thumbnails import Photo, stored_photos, within_budget

pytestmark = pytest.mark.usefixtures("flat")


def sections(models):
    return {section.title: section for section in page(models, "x").parts[0].sections}


def used(text: str) -> list[str]:
    return re.findall(r'<use href="#(photo-\w+)"', text)


def test_photos_are_read_back_in_their_order(with_photos):
    found = stored_photos(with_photos.arrays)
    assert list(found) == with_photos.arrays["photo_sample"].tolist()
    first = next(iter(found.values()))
    assert first.jpeg.startswith(b"\xff\xd8")
    assert (first.height, first.width) == (12, 16)
    assert stored_photos({}) == {}


def test_the_worst_mistakes_come_first_with_true_and_given_class(with_photos):
    body = sections([with_photos])["Worst mistakes"].body
    arrays = with_photos.arrays
    wrong = np.flatnonzero(arrays["label"] != arrays["prediction"])
    worst = wrong[np.argsort(arrays["sample_margin"][wrong], kind="stable")]
    photos = stored_photos(arrays)
    assert used(body) == [photos[sample].key for sample in worst[:24].tolist()]
    truth, given = (with_photos.classes[arrays[name][worst[0]]] for name in ("label", "prediction"))
    assert f"<b>{truth}</b><br>taken for <b>{given}</b>" in body


def test_confusions_have_a_matrix_and_photos_on_demand(with_photos):
    body = sections([with_photos])["Confused classes"].body
    pairs = re.findall(r'<details data-pair="(\d+)-(\d+)"', body)
    assert set(re.findall(r'data-open="(\d+)-(\d+)"', body)) == set(pairs)
    arrays = with_photos.arrays
    a, b = map(int, pairs[0])
    times = ((arrays["label"] == a) & (arrays["prediction"] == b)).sum()
    assert f"{times} × <b>{with_photos.classes[a]}</b>" in body
    inside = body.split(f'<details data-pair="{a}-{b}"')[1].split("</details>")[0]
    assert len(used(inside)) == min(times, 6)


def test_every_class_has_typical_and_odd_examples(with_photos):
    body = sections([with_photos])["Typical and odd examples"].body
    rows = body.split("<tr>")[2:]
    assert len(rows) == len(with_photos.classes)
    label, similarity = with_photos.arrays["label"], with_photos.arrays["similarity"]
    own = np.flatnonzero(label == 0)
    order = own[np.argsort(-similarity[own], kind="stable")].tolist()
    photos = stored_photos(with_photos.arrays)
    assert used(rows[0]) == [photos[s].key for s in [*order[:4], *order[:-5:-1]]]


def test_a_model_without_photos_has_the_other_sections(with_photos):
    bare = {name: values for name, values in with_photos.arrays.items() if not name.startswith("photo_")}
    found = sections([dataclasses.replace(with_photos, arrays=bare)])
    assert "Worst mistakes" not in found
    assert "Typical and odd examples" not in found
    assert "<details" not in found["Confused classes"].body
    assert "Click" not in found["Confused classes"].text


def test_a_photo_is_embedded_once_however_many_models_show_it(with_photos, tmp_path):
    write_page([with_photos, dataclasses.replace(with_photos, name="again")], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    embedded = re.findall(r'<symbol id="(photo-\w+)"', text)
    assert sorted(embedded) == sorted({photo.key for photo in stored_photos(with_photos.arrays).values()})
    assert set(used(text)) <= set(embedded)
    assert text.count("data:image/jpeg") == len(embedded)


def test_models_take_turns_within_the_budget():
    def photo(key: str) -> Photo:
        return Photo(key, b"0123456789", 1, 1, "")

    first = {5: photo("a"), 6: photo("b"), 7: photo("c")}
    second = {1: photo("a"), 2: photo("d"), 3: photo("e")}
    kept = within_budget([first, second], budget=30)
    assert [list(photos) for photos in kept] == [[5, 6], [1, 2]]  # the shared one counts once
    assert within_budget([first, second], budget=1000) == [first, second]


def test_a_page_with_large_photos_stays_under_three_megabytes(with_photos, tmp_path):
    n, size = 400, 9_000
    rng = np.random.default_rng(0)
    arrays = with_photos.arrays | {
        "photo_sample": np.arange(n) % with_photos.samples,
        "photo_jpeg": rng.integers(0, 256, n * size, dtype=np.uint8),
        "photo_end": np.arange(1, n + 1) * size,
        "photo_name": np.full(n, "a/b.jpg"),
    }
    assert len(stored_photos(arrays)) * size > 1_000_000
    rolled = [arrays | {"photo_jpeg": np.roll(arrays["photo_jpeg"], i)} for i in range(3)]
    models = [dataclasses.replace(with_photos, arrays=some) for some in rolled]
    write_page(models, tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 3_000_000


def test_names_of_files_are_text(with_photos):
    names = np.full(len(with_photos.arrays["photo_sample"]), '"><script>alert(1)</script>')
    model = dataclasses.replace(with_photos, arrays=with_photos.arrays | {"photo_name": names})
    assert page([model], "x").html().count("<script>") == 1

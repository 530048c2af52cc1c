"""The page in a real browser: loads without network, complains of nothing, and its controls work.

With TAMMES_SCREENSHOTS=folder the screenshots are kept there, to be looked at.
"""

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from tammes.report import inspect, write_page

pytestmark = pytest.mark.usefixtures("flat")


@pytest.fixture
def opened(browser, trained, tmp_path):
    """The page of two models, 1100 pixels wide."""
    write_page(trained, tmp_path / "page.html")
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(tmp_path / "page.html", width=1100)
    return browser


def keep(browser, name, tmp_path):
    path = Path(os.environ.get("TAMMES_SCREENSHOTS", tmp_path)) / name
    browser.screenshot(path)
    return path


def test_it_loads_from_a_file_alone_and_complains_of_nothing(opened, tmp_path):
    opened.run("document.title")
    assert not opened.complaints
    assert [url.split(":")[0] for url in opened.requests if not url.startswith("data:")] == ["file"]
    picture = keep(opened, "page.png", tmp_path).read_bytes()
    width, height = struct.unpack(">II", picture[16:24])
    assert width > 1000
    assert height > 2000
    assert len(picture) > 100_000  # a blank page is far smaller


def test_nothing_is_wider_than_a_phone(browser, trained, tmp_path):
    write_page(trained, tmp_path / "page.html")
    browser.open(tmp_path / "page.html", width=390, phone=True)
    assert browser.run("document.documentElement.scrollWidth") == 390
    heights = "[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)"
    assert min(height for height in browser.run(heights) if height) > 9  # letters that can be read
    keep(browser, "phone.png", tmp_path)


def test_long_names_stay_within_a_phone(browser, make, tmp_path):
    embeddings, labels, prototypes = make(4, 6, 40)
    names = [
        f"{i}_Animalia_Chordata_Aves_Passeriformes_Passerellidae_Zonotrichia_leucophrys" for i in range(4)
    ]
    write_page([inspect(embeddings, labels, prototypes, classes=names)], tmp_path / "page.html")
    browser.open(tmp_path / "page.html", width=390, phone=True)
    assert browser.run("document.documentElement.scrollWidth") == 390


def test_counts_sort_as_numbers(browser, make, tmp_path):
    labels = np.repeat(np.arange(4), [1100, 2500, 50, 900])
    prototypes = np.eye(4)
    write_page([inspect(prototypes[labels], labels, prototypes)], tmp_path / "page.html")
    browser.open(tmp_path / "page.html", width=1100)
    table = "[...document.querySelectorAll('table')].find(t => t.tHead.textContent.includes('samples'))"
    browser.run(f"{table}.tHead.rows[0].cells[3].click()")
    shown = browser.run(f"[...{table}.tBodies[0].rows].map(r => r.cells[3].textContent)")
    assert shown == ["50", "900", "1,100", "2,500"]


def test_the_chooser_shows_one_model_at_a_time(opened):
    shown = "[...document.querySelectorAll('article')].map(a => a.getBoundingClientRect().height > 0)"
    assert opened.run(shown) == [True, False]
    opened.run(
        "(() => { const c = document.querySelector('select[data-parts]'); c.value = '1'; "
        "c.dispatchEvent(new Event('change')); })()"
    )
    assert opened.run(shown) == [False, True]


def test_a_button_hides_the_curves_of_a_run_and_shows_them_again(opened):
    seen = (
        "[0, 1].map(r => [...document.querySelectorAll(`svg .run-${r}`)]"
        ".filter(g => getComputedStyle(g).display !== 'none').length)"
    )
    assert opened.run(seen) == [4, 4]
    opened.run("document.querySelector('button[data-run=\"1\"]').click()")
    assert opened.run(seen) == [4, 0]
    assert opened.run("document.querySelector('button[data-run=\"1\"]').ariaPressed") == "false"
    opened.run("document.querySelector('button[data-run=\"1\"]').click()")
    assert opened.run(seen) == [4, 4]


def test_counts_may_be_logarithmic(opened):
    first = "getComputedStyle(document.querySelector('svg.histogram .{}')).display !== 'none'"
    assert [opened.run(first.format(kind)) for kind in ("linear", "logarithmic")] == [True, False]
    opened.run("document.querySelector('input[data-log]').click()")
    assert [opened.run(first.format(kind)) for kind in ("linear", "logarithmic")] == [False, True]


def test_pointing_at_things_tells_what_they_are(opened):
    tip = "(() => { const t = document.querySelector('.tip'); return t.hidden ? '' : t.textContent; })()"
    assert opened.run(tip) == ""
    opened.point_at("svg .run-0 circle")
    assert opened.run(tip).startswith("runs/a\nepoch 5: ")
    opened.point_at("svg.histogram .linear rect")
    assert "right\n" in opened.run(tip)
    opened.point_at("article circle")
    assert "margin" in opened.run(tip)
    opened.point_at("h1")
    assert opened.run(tip) == ""


def test_a_cell_of_the_matrix_names_its_two_classes(opened, trained):
    left, top, side, _ = opened.bring("image[data-names]")
    row, column = 1, 4
    opened.move(left + (column + 0.5) * side / 6, top + (row + 0.5) * side / 6)
    said = opened.run("document.querySelector('.tip').textContent")
    units = trained[0].prototypes / np.linalg.norm(trained[0].prototypes, axis=1, keepdims=True)
    assert said.startswith("kind 1 and kind 4\ncosine ")
    assert float(said.split("cosine ")[1].split(",")[0]) == pytest.approx(
        units[row] @ units[column], abs=0.0051
    )


def test_the_map_shows_one_class_or_mistakes_only(opened, trained):
    counted = "document.querySelectorAll('article:not([hidden]) g[data-class] circle:not(.fade)').length"
    arrays = trained[0].arrays
    wrong = arrays["label"] != arrays["prediction"]
    assert opened.run(counted) == 120
    opened.run(
        "(() => { const c = document.querySelector('select[data-classes]'); c.value = '2'; "
        "c.dispatchEvent(new Event('change')); })()"
    )
    assert opened.run(counted) == (arrays["label"] == 2).sum() == 20
    opened.run("document.querySelector('input[data-mistakes]').click()")
    assert opened.run(counted) == ((arrays["label"] == 2) & wrong).sum()


def test_tables_sort_by_their_headings(opened):
    column = "[...document.querySelectorAll('article:not([hidden]) table')].at(-1).tBodies[0].rows"
    values = f"[...{column}].map(r => parseFloat(r.cells[5].textContent.replace('−', '-')))"
    head = (
        "[...document.querySelectorAll('article:not([hidden]) table')].at(-1).tHead.rows[0].cells[5].click()"
    )
    opened.run(head)
    assert opened.run(values) == sorted(opened.run(values))
    opened.run(head)
    assert opened.run(values) == sorted(opened.run(values), reverse=True)


def test_all_models_print_and_settings_unfold(opened):
    document = opened.pdf()
    assert document.startswith(b"%PDF")
    assert opened.run("[...document.querySelectorAll('details')].every(d => d.open)")
    opened.call("Emulation.setEmulatedMedia", media="print")
    shown = "[...document.querySelectorAll('article')].every(a => a.getBoundingClientRect().height > 0)"
    assert opened.run(shown)
    opened.call("Emulation.setEmulatedMedia", media="")


def test_hostile_names_run_nothing(browser, make, tmp_path):
    embeddings, labels, prototypes = make(3, 4, 60, noise=2.0)
    evil = ["</script><script>window.hacked=1</script>", '"><img src=x onerror="window.hacked=1">', "c"]
    write_page([inspect(embeddings, labels, prototypes, classes=evil)], tmp_path / "page.html")
    browser.complaints.clear()
    browser.open(tmp_path / "page.html", width=800)
    assert browser.run("typeof window.hacked") == "undefined"
    assert not browser.complaints

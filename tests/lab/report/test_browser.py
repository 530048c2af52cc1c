"""The page in a real browser: it loads without network or complaints, and its controls work.

Set TAMMES_SCREENSHOTS=FOLDER to keep the screenshots.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from tammes.lab.report import inspect, write_page
from tammes.lab.report.sphere_figure import Panel, draw_spheres

pytestmark = pytest.mark.usefixtures("flat")

LONG_NAME = "{}_Animalia_Chordata_Aves_Passeriformes_Passerellidae_Zonotrichia_leucophrys"


@pytest.fixture
def path(trained, tmp_path):
    """The page of two models."""
    write_page(trained, tmp_path / "page.html")
    return tmp_path / "page.html"


@pytest.fixture
def opened(path, show):
    """That page in a window 1100 pixels wide, with the first model chosen."""
    page = show(path)
    page.locator("select[data-parts]").select_option("0")
    return page


def screenshot(page, name, tmp_path) -> bytes:
    folder = Path(os.environ.get("TAMMES_SCREENSHOTS", tmp_path))
    return page.screenshot(path=folder / name, full_page=True)


def point_at(mark) -> None:
    """Move the mouse to a mark once scrolling, which hides the tooltip, is over."""
    mark.scroll_into_view_if_needed()
    mark.page.wait_for_timeout(100)
    mark.hover(force=True)


def tip(page) -> str:
    """What the tooltip shows; empty while it is hidden."""
    found = page.locator(".tip")
    return found.text_content() if found.is_visible() else ""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "phone"), [(1400, False), (420, True)])
def test_it_loads_from_a_file_alone_without_complaints(path, show, width, phone, dark, tmp_path):
    page = show(path, width=width, phone=phone, dark=dark)
    assert not page.complaints  # a violated Content-Security-Policy would be one
    assert [url.split(":")[0] for url in page.requests if not url.startswith("data:")] == ["file"]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    picture = screenshot(page, f"page-{width}-{'dark' if dark else 'light'}.png", tmp_path)
    assert len(picture) > 100_000  # a blank page is far smaller


def test_letters_are_readable_on_a_phone(path, show):
    page = show(path, width=390, phone=True)
    heights = page.evaluate(
        "[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)"
    )
    assert min(height for height in heights if height) > 9


def test_long_names_stay_within_a_phone(show, make, tmp_path):
    embeddings, labels, prototypes = make(4, 6, 40)
    names = [LONG_NAME.format(i) for i in range(4)]
    write_page([inspect(embeddings, labels, prototypes, classes=names)], tmp_path / "page.html")
    page = show(tmp_path / "page.html", width=390, phone=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_table_wider_than_the_screen_says_that_it_scrolls(path, show):
    table = ".scroll:has(table)"
    wide, narrow = show(path, width=1400), show(path, width=420, phone=True)
    assert wide.locator(".more").count() == 0
    assert narrow.locator(table).first.evaluate("b => b.scrollWidth > b.clientWidth")
    assert narrow.locator(f".more + {table}").count() >= 1


def test_without_scripts_all_is_there(path, chromium):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert [article.is_visible() for article in page.locator("article").all()] == [True, True]
    assert page.locator("svg .run-0 circle").first.is_visible()
    context.close()


def test_counts_sort_as_numbers(show, tmp_path):
    labels = np.repeat(np.arange(4), [1100, 2500, 50, 900])
    prototypes = np.eye(4)
    write_page([inspect(prototypes[labels], labels, prototypes)], tmp_path / "page.html")
    page = show(tmp_path / "page.html")
    table = page.locator("table", has=page.locator("th", has_text="samples"))
    table.locator("th", has_text="samples").click()
    assert table.locator("tbody td:nth-child(4)").all_text_contents() == ["50", "900", "1,100", "2,500"]


def test_tables_sort_both_ways(opened):
    table = opened.locator("article:visible table", has=opened.locator("th", has_text="mean margin"))

    def values():
        texts = table.locator("tbody td:nth-child(6)").all_text_contents()
        return [float(text.replace("−", "-")) for text in texts]

    head = table.locator("th", has_text="mean margin")
    head.click()
    assert values() == sorted(values())
    head.click()
    assert values() == sorted(values(), reverse=True)


def test_the_chooser_shows_one_model_at_a_time(path, show):
    opened = show(path)
    articles = opened.locator("article")
    assert [article.is_visible() for article in articles.all()] == [False, True]  # the better one at first
    opened.locator("select[data-parts]").select_option("0")
    assert [article.is_visible() for article in articles.all()] == [True, False]


def test_a_button_hides_the_curves_of_a_run_and_shows_them_again(opened):
    def seen():
        return [
            sum(curve.is_visible() for curve in opened.locator(f"svg .run-{run} circle:first-of-type").all())
            for run in (0, 1)
        ]

    button = opened.locator('button[data-run="1"]')
    assert seen() == [4, 4]
    button.click()
    assert seen() == [4, 0]
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert seen() == [4, 4]


def test_counts_can_be_logarithmic(opened):
    scales = [opened.locator(f"svg.histogram .{kind}").first for kind in ("linear", "logarithmic")]
    assert [scale.is_visible() for scale in scales] == [True, False]
    opened.locator("input[data-log]").first.click()
    assert [scale.is_visible() for scale in scales] == [False, True]


def test_pointing_at_things_tells_what_they_are(opened):
    assert tip(opened) == ""
    point_at(opened.locator("svg .run-0 circle").first)
    assert tip(opened).startswith("runs/a\nepoch 5: ")
    point_at(opened.locator("svg.histogram .linear rect").first)
    assert ": " in tip(opened).splitlines()[1]
    point_at(opened.locator("article circle").first)
    assert "margin" in tip(opened)
    opened.locator("h1").hover()
    assert tip(opened) == ""


def test_a_cell_of_the_matrix_names_its_two_classes(opened, trained):
    image = opened.locator("image[data-names]").first
    image.scroll_into_view_if_needed()
    opened.wait_for_timeout(100)
    box = image.bounding_box()
    row, column = 1, 4
    opened.mouse.move(
        box["x"] + (column + 0.5) * box["width"] / 6, box["y"] + (row + 0.5) * box["height"] / 6
    )
    said = tip(opened)
    units = trained[0].prototypes / np.linalg.norm(trained[0].prototypes, axis=1, keepdims=True)
    assert said.startswith("kind 1 and kind 4\ncosine ")
    cosine = float(said.split("cosine ")[1].split(",")[0].replace("−", "-"))
    assert cosine == pytest.approx(units[row] @ units[column], abs=0.0051)


def test_the_map_shows_one_class_or_mistakes_only(opened, trained):
    arrays = trained[0].arrays
    wrong = arrays["label"] != arrays["prediction"]
    shown = opened.locator("article:visible g[data-class] circle:not(.fade)")
    assert shown.count() == 120
    opened.locator("select[data-classes]").first.select_option("2")
    assert shown.count() == (arrays["label"] == 2).sum() == 20
    opened.locator("input[data-mistakes]").first.click()
    assert shown.count() == ((arrays["label"] == 2) & wrong).sum()


def test_all_models_print_and_settings_unfold(opened):
    opened.emulate_media(media="print")
    assert [article.is_visible() for article in opened.locator("article").all()] == [True, True]
    opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert all(opened.locator("details").evaluate_all("all => all.map(one => one.open)"))
    assert opened.pdf().startswith(b"%PDF")


def test_hostile_names_run_nothing(show, make, tmp_path):
    embeddings, labels, prototypes = make(3, 4, 60, noise=2.0)
    evil = ["</script><script>window.hacked=1</script>", '"><img src=x onerror="window.hacked=1">', "c"]
    write_page([inspect(embeddings, labels, prototypes, classes=evil)], tmp_path / "page.html")
    page = show(tmp_path / "page.html")
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert not page.complaints


def test_even_a_script_that_slips_in_does_not_run(path, show):
    """The policy allows the page's own script by its hash, and no other."""
    broken = path.read_text().replace("</main>", "</main><script>window.hacked=1</script>")
    path.write_text(broken)
    page = show(path)
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert any("Content Security Policy" in text for text in page.complaints)


def test_spheres_turn_with_the_pointer(show, tmp_path):
    panels = [Panel("axes & <b>", np.eye(3), np.eye(3)), Panel("one", -np.eye(3)[:1])]
    draw_spheres(panels, tmp_path / "spheres.html")
    page = show(tmp_path / "spheres.html")
    assert not page.complaints
    first = page.locator("svg.sphere").first
    assert first.locator(".arrow").count() == 3
    assert first.locator(".feature").count() == 3
    assert page.locator("figcaption").first.text_content() == "axes & <b>"
    before = first.inner_html()
    first.hover()
    page.mouse.down()
    page.mouse.move(400, 400)
    page.mouse.up()
    page.wait_for_function("before => document.querySelector('svg.sphere').innerHTML !== before", arg=before)
    screenshot(page, "spheres.png", tmp_path)


@pytest.fixture
def photos(with_photos, show, tmp_path):
    """The page of a model with photos."""
    write_page([with_photos], tmp_path / "photos.html")
    return show(tmp_path / "photos.html", width=1400)


def test_photos_are_drawn(photos):
    assert not photos.complaints
    thumb = photos.locator("svg.thumb").first
    box = thumb.bounding_box()
    assert box["height"] >= 90
    assert box["width"] / box["height"] == pytest.approx(16 / 12, rel=0.1)
    width = "async url => { const p = new Image(); p.src = url; await p.decode(); return p.width; }"
    assert photos.evaluate(width, photos.locator("symbol image").first.get_attribute("href")) == 16


def test_a_cell_of_the_confusion_matrix_opens_its_photos(photos):
    cell = photos.locator("[data-open]").nth(1)
    pair = photos.locator(f'details[data-pair="{cell.get_attribute("data-open")}"]')
    assert pair.get_attribute("open") is None
    cell.click()
    assert pair.get_attribute("open") is not None
    assert pair.locator("svg.thumb").first.is_visible()
    photos.locator("[data-open]").nth(2).click()
    assert pair.get_attribute("open") is None


def test_pointing_at_a_sample_on_the_map_shows_its_photo(photos):
    point_at(photos.locator("circle[data-photo]").first)
    assert photos.locator(".tip svg use").count() == 1
    photos.locator("h1").hover()
    assert not photos.locator(".tip").is_visible()

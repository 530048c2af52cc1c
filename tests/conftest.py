"""Data shared by tests of several packages, and a headless Chromium to open pages."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def tile_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the number of rows per tile, so that few prototypes make many tiles."""
    # Imported here because the pytest plugin of the oldest jaxtyping starts after this file is loaded,
    # and refuses packages that are already imported.
    from tammes._common import row_blocks

    return lambda rows: monkeypatch.setattr(row_blocks, "TILE_ROWS", rows)


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory) -> Callable[[int], Path]:
    """Make a data root whose mnist.npz has n training and 20 test images: bright lines in noise."""

    def make(n: int) -> Path:
        folder, rng = tmp_path_factory.mktemp("root"), np.random.default_rng(0)
        arrays = {}
        for split, size in (("train", n), ("test", 20)):
            labels = np.arange(size) % 10
            images = rng.integers(0, 80, (size, 28, 28))
            images[np.arange(size), 2 * labels] = 250
            arrays |= {f"x_{split}": images.astype(np.uint8), f"y_{split}": labels}
        np.savez(folder / "mnist.npz", **arrays)
        return folder

    return make


def person(number: int, camera: int, rng: np.random.Generator) -> Image.Image:
    """Two stripes in the colors of the person, with noise; brighter on one camera."""
    colors = np.random.default_rng(number).integers(30, 200, (2, 3))
    pixels = np.repeat(colors, 12, axis=0)[:, None].repeat(12, 1) + 25 * camera
    return Image.fromarray((pixels + rng.normal(0, 12, pixels.shape)).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="session")
def people(tmp_path_factory):
    """A folder with six people for training and five others to search for, two cameras each."""
    root, rng = tmp_path_factory.mktemp("data") / "people", np.random.default_rng(0)
    for number in range(1, 12):
        for camera in (1, 2):
            for shot in range(4):
                train_or_test = "gallery" if shot else "query"
                folder = root / ("train" if number <= 6 else train_or_test)
                folder.mkdir(parents=True, exist_ok=True)
                person(number, camera, rng).save(folder / f"{number:04d}_c{camera}s1_{shot}.png")
    person(99, 1, rng).save(root / "gallery" / "-1_c1s1_0.png")
    person(98, 1, rng).save(root / "gallery" / "0000_c1s1_0.png")
    return root


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="session")
def chromium():
    """The system's Chromium, driven by playwright."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser installed: none of {', '.join(BROWSERS)}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(chromium):
    """`show(path, width=1100)` opens a file; console errors and requests are kept on the page object."""
    contexts = []

    def opened(path: Path, *, width: int = 1100, phone: bool = False, dark: bool = False):
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            is_mobile=phone,
            has_touch=phone,
            color_scheme="dark" if dark else "light",
        )
        contexts.append(context)
        page = context.new_page()
        page.complaints, page.requests = [], []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(path.resolve().as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()

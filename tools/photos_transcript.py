"""Regenerate docs/photos-transcript.md: from a folder of photos to a model, a report and an ONNX file.

Copies the first 40 photos of eight kinds of flowers that are easily confused, runs each command on them in a
fresh directory, and writes what it printed, with pictures of the page, to the documentation. The photos are
from a checkout of github 3ba2ii/Flower-Classifier, which does not say who may publish them, so the pictures
of the page show them blurred.

Run: python tools/photos_transcript.py CHECKOUT
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from PIL import Image

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "photos-transcript.md"
FLOWERS = ("azalea", "camellia", "hibiscus", "mallow", "petunia", "rose", "sword lily", "tree mallow")
PHOTOS_EACH = 40


class Picture(NamedTuple):
    """A picture of the page of the run: size of the window, and the heading at its top."""

    width: int
    height: int
    heading: str
    text: str


PICTURES = {
    "photos-report.png": Picture(1000, 1270, "Report on runs/photos", "The page"),
    "photos-report-map.png": Picture(1000, 900, "Map", "The map of the test images, further down"),
    "photos-report-phone.png": Picture(420, 900, "Report on runs/photos", "The page on a phone"),
}

TO_THE_TOP = "found => scrollTo(0, scrollY + found.getBoundingClientRect().top - 24)"

ONNX = """\
import json, numpy as np, onnxruntime
from PIL import Image, ImageOps

model = json.load(open("runs/photos/model.json"))
size = tuple(model["preprocessing"]["resize"][side] for side in ("width", "height"))
image = Image.open("new.jpg")
image.draft("RGB", (2 * max(size),) * 2)  # as in training: large JPEG files are decoded at a smaller scale
image = ImageOps.fit(ImageOps.exif_transpose(image).convert("RGB"), size, Image.Resampling.BILINEAR)
session = onnxruntime.InferenceSession("runs/photos/model.onnx")
(probabilities,) = session.run(["probabilities"], {"images": np.asarray(image)[None]})
print(model["classes"][probabilities[0].argmax()], round(float(probabilities[0].max()), 3))
"""

STEPS = (
    ("What is in the folder?", "tammes data photos"),
    ("Train.", "tammes train photos --out runs/photos"),
    ("Where does it fail?", "tammes evaluate runs/photos --worst 3"),
    ("The page.", "tammes report runs/photos"),
    ("A new photo.", "tammes predict runs/photos new.jpg --top 3"),
    ("For other programs.", "tammes export runs/photos --format onnx"),
)


def run(command: str, folder: Path) -> str:
    """Run a command and return what it prints to both streams."""
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stdout}")
    return re.sub(r"[ \t]+$", "", done.stdout, flags=re.MULTILINE).strip()


def photograph(page: Path) -> None:
    """Pictures of a page, with its photos blurred."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (width, height, heading, _) in PICTURES.items():
            tab = browser.new_page(viewport={"width": width, "height": height})
            tab.goto(page.as_uri())
            tab.locator("svg.thumb use").evaluate_all("all => all.forEach(u => u.style.filter = 'blur(4px)')")
            tab.get_by_role("heading", name=heading, exact=True).evaluate(TO_THE_TOP)
            tab.screenshot(path=DOCS / "figures" / name)
            _shrink(DOCS / "figures" / name)
        browser.close()


def _shrink(picture: Path) -> None:
    """Reduce a picture to 256 colors: a third of the bytes."""
    Image.open(picture).convert("RGB").quantize(256).save(picture, optimize=True)


def copy_photos(checkout: Path, target: Path) -> None:
    """The first photos of each of the `FLOWERS`, in a folder with the name of the flower."""
    names = json.loads((checkout / "cat_to_name.json").read_text())
    for number in sorted(names, key=int):
        if names[number] in FLOWERS:
            folder = target / names[number].replace(" ", "-")
            folder.mkdir(parents=True)
            files = sorted((checkout / "flowers").glob(f"*/{number}/*.jpg"), key=lambda file: file.name)
            for file in files[:PHOTOS_EACH]:
                shutil.copyfile(file, folder / file.name)


def transcript(checkout: Path) -> str:
    """The text of the page."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        copy_photos(checkout, folder / "photos")
        first = sorted((folder / "photos").rglob("*.jpg"))[0]
        first.rename(folder / "new.jpg")
        parts = []
        for title, command in STEPS:
            print(command, flush=True)
            parts.append(f"## {title}\n\n```\n$ {command}\n{run(command, folder)}\n```\n")
            if command.startswith("tammes report"):
                photograph(folder / "runs" / "photos" / "report.html")
                parts.append("The photos are blurred here, because they are not ours to publish.\n")
                parts += [f"![{picture.text}](figures/{name})\n" for name, picture in PICTURES.items()]
        (folder / "onnx_example.py").write_text(ONNX)
        shown = run("onnx_example", folder)
        parts.append(f"## The same photo with onnxruntime\n\n```\n{ONNX}```\n\n```\n{shown}\n```\n")
    return "\n".join(parts)


def main() -> None:
    head = (
        "# From a folder of photos to a model, a page and ONNX\n\n"
        "What a first-time user types and sees. `python tools/photos_transcript.py CHECKOUT` writes this "
        "page. Times are those of\na busy machine. "
        "[Layouts, sizes and preprocessing](photos.md).\n\n"
    )
    PAGE.write_text(head + transcript(Path(sys.argv[1]).resolve()), encoding="utf-8")


if __name__ == "__main__":
    main()

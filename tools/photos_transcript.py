"""Regenerate docs/photos-transcript.md: from a folder of photos to a model, a report and an ONNX file.

Runs each command on a folder of photos, in a fresh directory, and writes what it printed, with pictures of
the page, to the documentation. The page of the docs was made from six classes of 40 photos of the flowers in
benchmarks/photos.py.

Run: python tools/photos_transcript.py PHOTOS
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "photos-transcript.md"
PICTURES = {"photos-report.png": (1000, 840), "photos-report-phone.png": (420, 800)}
"""Pictures of the page of the run: file, and width and height of the window, which ends above the photos."""

ONNX = """\
import json, numpy as np, onnxruntime
from PIL import Image, ImageOps

model = json.load(open("runs/photos/model.json"))
size = tuple(model["preprocessing"]["resize"][side] for side in ("width", "height"))
image = ImageOps.fit(Image.open("new.jpg").convert("RGB"), size, Image.Resampling.BILINEAR)
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
    """Screenshots of the top of a page, at the widths of a desktop and a phone."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (width, height) in PICTURES.items():
            tab = browser.new_page(viewport={"width": width, "height": height})
            tab.goto(page.as_uri())
            tab.screenshot(path=DOCS / "figures" / name)
            _shrink(DOCS / "figures" / name)
        browser.close()


def _shrink(picture: Path) -> None:
    """Reduce a picture to 256 colors: a third of the bytes."""
    Image.open(picture).convert("RGB").quantize(256).save(picture, optimize=True)


def transcript(photos: Path) -> str:
    """The text of the page."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copytree(photos, folder / "photos")
        first = sorted((folder / "photos").rglob("*.jpg"))[0]
        first.rename(folder / "new.jpg")
        parts = []
        for title, command in STEPS:
            print(command, flush=True)
            parts.append(f"## {title}\n\n```\n$ {command}\n{run(command, folder)}\n```\n")
            if command.startswith("tammes report"):
                photograph(folder / "runs" / "photos" / "report.html")
                parts.append(
                    f"![The page]({Path('figures') / 'photos-report.png'})\n"
                    f'<img src="figures/photos-report-phone.png" alt="The page on a phone" width="210">\n'
                )
        (folder / "onnx_example.py").write_text(ONNX)
        shown = run("onnx_example", folder)
        parts.append(f"## The same photo with onnxruntime\n\n```\n{ONNX}```\n\n```\n{shown}\n```\n")
    return "\n".join(parts)


def main() -> None:
    head = (
        "# From a folder of photos to a model, a page and ONNX\n\n"
        "What a first-time user types and sees. `python tools/photos_transcript.py PHOTOS` writes this page. "
        "Times are those of\none thread on a busy machine. [Layouts, sizes and preprocessing](photos.md).\n\n"
    )
    PAGE.write_text(head + transcript(Path(sys.argv[1]).resolve()), encoding="utf-8")


if __name__ == "__main__":
    main()

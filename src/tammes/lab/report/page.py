"""One HTML page made of sections: a single file that works offline, on paper and on phones.

Charts are inline SVG (`charts.py`): they appear before any script runs, print as drawn and take a hundred
kilobytes, whereas a JavaScript charting library starts at one megabyte per page.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

import tammes
from tammes._common.files import write_text
from tammes.lab.report.tables import Grid
from tammes.lab.report.templating import asset, render
from tammes.lab.report.thumbnails import Photo


class Section(NamedTuple):
    """A heading, an explanation in plain words, and the content.

    Attributes:
        title: plain text.
        text: plain text; an empty line starts a new paragraph.
        body: markup, as `render` returns it; a plain string is escaped.
        anchor: the fragment by which other sections can link here.
    """

    title: str
    text: str
    body: Markup | str = ""
    anchor: str = ""


class Part(NamedTuple):
    """The sections about one of several models; the page shows one part at a time and prints all."""

    name: str
    sections: list[Section]


@dataclass(frozen=True, kw_only=True)
class Page:
    """Sections about all models, one part per model, and closing sections.

    `photos` are those that sections show; `first` is the part that is shown at first.
    """

    title: str
    lead: str
    opening: list[Section]
    parts: list[Part]
    closing: list[Section]
    photos: Sequence[Photo] = ()
    first: int = 0

    def html(self) -> str:
        """The whole file."""
        style, script = asset("page.css"), asset("page.js")
        return render(
            "page.html",
            page=self,
            style=style,
            script=script,
            policy=content_policy(style=style, script=script),
            version=tammes.__version__,
        )

    def write(self, path: Path) -> None:
        """Write the page to a file."""
        write_text(path, self.html() + "\n")


def content_policy(*, style: str, script: str) -> str:
    """The Content-Security-Policy: the page loads nothing and runs only its own script."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def figure(chart: Markup, caption: str = "", *, kind: str = "") -> Markup:
    """A chart with a caption in plain text."""
    return render("figure.html", chart=chart, caption=caption, kind=kind)


def html_table(grid: Grid) -> Markup:
    """A table that scrolls sideways where the screen is too narrow for it."""
    return render("table.html", grid=grid)

"""One HTML page made of sections: a single file without network, that prints and reads on a phone.

Charts are SVG in the page itself (`tammes.report.charts`), a script of five kilobytes adds what can be
pointed at and switched. So a page weighs a hundred kilobytes or two; with plotly inside it would be five
megabytes, would show nothing until its script has run, and would print what happens to be on the screen.
"""

import re
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import tammes
from tammes.provenance import write_text
from tammes.report.tables import Grid, to_html

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Whatever a page holds, it loads nothing."""


class Section(NamedTuple):
    """A heading, what is to be seen below it in plain words, and the thing itself.

    Attributes:
        title: plain text.
        explanation: plain text; an empty line begins a new paragraph.
        body_html: markup, in which all text from elsewhere is escaped.
    """

    title: str
    explanation: str
    body_html: str


class Part(NamedTuple):
    """The sections on one of several models; the page shows one part at a time and prints all."""

    name: str
    sections: list[Section]


@dataclass(frozen=True, kw_only=True)
class Page:
    """Sections on everything together, then a part for each model, then the rest."""

    title: str
    lead: str
    opening: list[Section]
    parts: list[Part]
    closing: list[Section]

    def html(self) -> str:
        """The whole file."""
        body = [
            f"<header><h1>{escape(self.title)}</h1>{paragraphs(self.lead, 'lead')}</header><main>",
            *(_section(section, 2) for section in self.opening),
            _chooser(self.parts),
            *(_part(number, part) for number, part in enumerate(self.parts)),
            *(_section(section, 2) for section in self.closing),
            f"</main><footer><p>Written by tammes {tammes.__version__}.</p></footer>",
        ]
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n"
            + "\n".join(body)
            + f"\n<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
        )

    def write(self, path: Path) -> None:
        """The page as a file."""
        write_text(path, self.html())


def paragraphs(text: str, kind: str = "") -> str:
    """Plain text as paragraphs.

    >>> paragraphs("k < d\\n\\nsecond")
    '<p>k &lt; d</p><p>second</p>'
    """
    attribute = f' class="{kind}"' if kind else ""
    parts = re.split(r"\n\s*\n", text.strip())
    return "".join(f"<p{attribute}>{escape(part)}</p>" for part in parts if part)


def figure(chart: str, caption: str = "", *, kind: str = "") -> str:
    """A chart with a caption in plain text."""
    attribute = f' class="{kind}"' if kind else ""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure{attribute}>{chart}{below}</figure>"


def wide(grid: Grid) -> str:
    """A table, which is moved sideways where the screen is narrow."""
    return f'<div class="wide">{to_html(grid)}</div>'


def _section(section: Section, level: int) -> str:
    head = f"<h{level}>{escape(section.title)}</h{level}>"
    return f"<section>{head}{paragraphs(section.explanation)}{section.body_html}</section>"


def _part(number: int, part: Part) -> str:
    inner = "".join(_section(section, 3) for section in part.sections)
    return f'<article data-part="{number}"><h2>{escape(part.name)}</h2>{inner}</article>'


def _chooser(parts: list[Part]) -> str:
    """A list to choose the part from; the script shows that one alone."""
    if len(parts) < 2:
        return ""
    options = "".join(f'<option value="{i}">{escape(part.name)}</option>' for i, part in enumerate(parts))
    return f'<div class="chooser"><label>In detail: <select data-parts>{options}</select></label></div>'


def _asset(name: str) -> str:
    return resources.files("tammes.report").joinpath(name).read_text(encoding="utf-8")

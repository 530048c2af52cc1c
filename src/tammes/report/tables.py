"""Tables of numbers, ours beside the paper's, for the terminal, for Markdown and for pages."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tammes.provenance import write_text

Records = Mapping[str, Mapping[str, Any]]
"""The records of finished rows, under their keys."""

BETTER = "better than the row it extends"


class Cell(NamedTuple):
    """Text, and whether it is the better of a pair."""

    text: str = ""
    better: bool = False


class Grid(NamedTuple):
    """A table ready to be written anywhere.

    Attributes:
        title: what the numbers are of.
        columns: their heads.
        blocks: lines under a heading, which may be empty.
        words: so many of the first columns hold words; the others hold numbers and are set right.
        notes: sentences below the table.
    """

    title: str
    columns: Sequence[str]
    blocks: Sequence[tuple[str, Sequence[Sequence[Cell]]]]
    words: int = 1
    notes: Sequence[str] = ()


class Column(NamedTuple):
    """A metric of the records: `factor` turns it into the unit that the paper prints.

    The larger of two numbers is the better one, unless the column `falls`.
    """

    title: str
    metric: str
    digits: int = 2
    factor: float = 1.0
    falls: bool = False


MARGINS = (
    Column("acc %", "accuracy", 2, 100.0),
    Column("m_cls deg", "class_margin_deg", 2),
    Column("m_samp", "sample_margin", 4),
)
"""The measures of the paper's classification tables."""


@runtime_checkable
class TableRow(Protocol):
    """What a row of a recipe tells a table."""

    @property
    def key(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def paper(self) -> Mapping[str, float]: ...
    @property
    def block(self) -> str: ...
    @property
    def versus(self) -> str: ...


class Line(NamedTuple):
    """One line: the records of its seeds that are finished, and the paper's numbers."""

    row: TableRow
    records: Sequence[Mapping[str, Any]]

    def ours(self, column: Column) -> list[float]:
        found = [(record.get("metrics") or {}).get(column.metric) for record in self.records]
        return [column.factor * value for value in found if value is not None]

    def printed(self, column: Column) -> list[float]:
        value = self.row.paper.get(column.metric)
        return [] if value is None else [value]

    @property
    def diverged(self) -> int:
        """How many of the seeds did."""
        return sum("diverged" in record for record in self.records)


def beside(
    title: str,
    rows: Sequence[TableRow],
    records: Records,
    columns: Sequence[Column],
    notes: Sequence[str] = (),
    *,
    unseen: Sequence[TableRow] = (),
) -> Grid:
    """Every row with its finished records beside the paper's numbers, blank where there are none.

    Rows of one block and label are seeds of one line: their mean and standard deviation is shown. A line
    that names another as `versus` has each number marked that is better than the other's, ours and the
    paper's each among themselves. A row whose loss diverged has a dash. Rows that are `unseen` have no
    line, but others may be compared with them.
    """
    lines = _lines(rows, records)
    by_key = {line.row.key: line for line in (*_lines(unseen, records), *lines)}
    printed = [c for c in columns if any(line.printed(c) for line in lines)]
    heads = [head for c in columns for head in (c.title, *(["paper"] if c in printed else []))]
    blocks: dict[str, list[list[Cell]]] = {}
    for line in lines:
        cells, other = [Cell(line.row.label)], by_key.get(line.row.versus)
        for column in columns:
            cells.append(_cell(line.ours(column), other and other.ours(column), column, line.diverged))
            if column in printed:
                cells.append(_cell(line.printed(column), other and other.printed(column), column))
        blocks.setdefault(line.row.block, []).append(cells)
    verdict = [*_pairs_won(lines, by_key, columns), *_distance(lines, printed)]
    return Grid(title, ["", *heads], list(blocks.items()), notes=[*notes, *verdict])


def _pairs_won(lines: Sequence[Line], by_key: Mapping[str, Line], columns: Sequence[Column]) -> list[str]:
    """What the marks mean, and how many of the pairs that were run have one."""
    pairs = [(line, by_key[line.row.versus]) for line in lines if line.row.versus in by_key]
    if not pairs:
        return []
    said = []
    for column in columns:
        run = [(a, b) for a, b in pairs if a.ours(column) and b.ours(column)]
        ours = sum(_cell(a.ours(column), b.ours(column), column).better for a, b in run)
        theirs = sum(_cell(a.printed(column), b.printed(column), column).better for a, b in run)
        known = sum(bool(a.printed(column) and b.printed(column)) for a, b in run)
        if run:
            paper = f", the paper's in {theirs} of {known}" if known else ""
            said.append(f"{column.title} in {ours} of {len(run)} pairs run{paper}")
    return [f"Marked: {BETTER}{': ' if said else ''}{'; '.join(said)}."]


def _distance(lines: Sequence[Line], columns: Sequence[Column]) -> list[str]:
    """How far ours are from the paper's, at the median of the rows that both have."""
    said = []
    for column in columns:
        both = [(line.ours(column), line.printed(column)) for line in lines]
        apart = [fmean(ours) - theirs[0] for ours, theirs in both if ours and theirs]
        if apart:
            said.append(f"{column.title} {median(apart):+.{column.digits}f} ({len(apart)} rows)")
    return [f"Ours less the paper's, at the median: {', '.join(said)}."] if said else []


def _lines(rows: Iterable[TableRow], records: Records) -> list[Line]:
    """Rows of one block and label together, in the order of the first of each."""
    groups: dict[tuple[str, str], list[TableRow]] = {}
    for row in rows:
        groups.setdefault((row.block, row.label), []).append(row)
    return [Line(some[0], [records[r.key] for r in some if r.key in records]) for some in groups.values()]


def _cell(values: list[float], other: list[float] | None, column: Column, diverged: int = 0) -> Cell:
    if not values:
        return Cell("–" if diverged else "")
    digits = column.digits
    mean = round(fmean(values), digits)
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    spread += f" ({diverged} more diverged)" if diverged else ""
    return Cell(
        f"{mean:.{digits}f}{spread}", bool(other) and _better(mean, round(fmean(other), digits), column)
    )


def _better(value: float, other: float, column: Column) -> bool:
    return value < other if column.falls else value > other


def to_terminal(grid: Grid) -> Any:
    """A table and its notes, which rich prints; the better of a pair is bold and has a star."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=grid.title or None, title_justify="left", box=None, pad_edge=False)
    table.header_style = "bold"
    for place, head in enumerate(grid.columns):
        words = place < grid.words
        table.add_column(head, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    room = " " if any_better(grid) else ""  # so that numbers stay below each other, starred or not
    for heading, body in grid.blocks:
        if heading:
            table.add_row(Text(heading, style="bold"))
        for cells in body:
            table.add_row(
                *(Text(f"{c.text}*", style="bold") if c.better else Text(c.text + room) for c in cells)
            )
        table.add_section()
    return Group(table, *(Text(note.replace("Marked:", "*")) for note in grid.notes))


def any_better(grid: Grid) -> bool:
    """Whether a cell is the better of a pair."""
    return any(cell.better for _, body in grid.blocks for cells in body for cell in cells)


def to_markdown(grid: Grid) -> str:
    """A table of GitHub's Markdown and its notes; the better of a pair is bold."""
    rules = ["---" if place < grid.words else "---:" for place in range(len(grid.columns))]
    lines = [_markdown_line(map(_plain, grid.columns)), _markdown_line(rules)]
    for heading, body in grid.blocks:
        if heading:
            lines.append(_markdown_line([f"*{_plain(heading)}*", *[""] * (len(grid.columns) - 1)]))
        lines += [_markdown_line(map(_markdown_text, cells)) for cells in body]
    notes = [f"\n{' '.join(grid.notes).replace('Marked:', 'Bold:')}"] if grid.notes else []
    return "\n".join([*lines, *notes]) + "\n"


def _markdown_line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _markdown_text(cell: Cell) -> str:
    return f"**{_plain(cell.text)}**" if cell.better else _plain(cell.text)


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is.

    >>> print(_plain("0.5*R_sm"))
    0.5\\*R\\_sm
    """
    return re.sub(r"([|*_\\<])", r"\\\1", text)


def to_html(grid: Grid) -> str:
    """A table element and its notes; the better of a pair is strong."""
    heads = "".join(f"<th{_side(place, grid)}>{escape(head)}</th>" for place, head in enumerate(grid.columns))
    caption = f"<caption>{escape(grid.title)}</caption>\n" if grid.title else ""
    parts = [f"<table>\n{caption}<thead><tr>{heads}</tr></thead>"]
    for heading, body in grid.blocks:
        parts.append("<tbody>")
        if heading:
            parts.append(f'<tr><th colspan="{len(grid.columns)}">{escape(heading)}</th></tr>')
        for cells in body:
            inner = "".join(
                f"<td{_side(place, grid)}>{_html_text(cell)}</td>" for place, cell in enumerate(cells)
            )
            parts.append(f"<tr>{inner}</tr>")
        parts.append("</tbody>")
    parts.append("</table>")
    parts += [f"<p>{escape(note).replace('Marked:', 'Bold:')}</p>" for note in grid.notes]
    return "\n".join(parts) + "\n"


def _side(place: int, grid: Grid) -> str:
    return "" if place < grid.words else ' class="number"'


def _html_text(cell: Cell) -> str:
    return f"<strong>{escape(cell.text)}</strong>" if cell.better else escape(cell.text)


def fill(path: Path, name: str, text: str) -> None:
    """Put `text` between the lines `<!-- name -->` and `<!-- end name -->` of a Markdown page."""
    page = path.read_text(encoding="utf-8")
    start, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
    before, found, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path} has no place for {name}. Give it two lines: {start.strip()} and {end}")
    write_text(path, f"{before}{start}{text}{end}{after}")

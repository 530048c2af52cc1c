"""Tables of numbers, ours beside the paper's, for the terminal, Markdown and pages."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tammes._common.checks import reading
from tammes._common.files import write_text
from tammes._common.terminal import printable

Records = Mapping[str, Mapping[str, Any]]
"""Records of finished runs, by key or by name in a legend."""

BETTER = "better than the row it extends"


class Cell(NamedTuple):
    """Text, and whether it is the better one of a pair."""

    text: str = ""
    better: bool = False


class Grid(NamedTuple):
    """A table, ready for any output format.

    Attributes:
        title: what the numbers are about.
        columns: the column headings.
        blocks: rows under a heading, which may be empty.
        words: number of leading columns that hold words; the others hold numbers, aligned right.
        notes: sentences below the table.
    """

    title: str
    columns: Sequence[str]
    blocks: Sequence[tuple[str, Sequence[Sequence[Cell]]]]
    words: int = 1
    notes: Sequence[str] = ()


class Column(NamedTuple):
    """A metric of the records; `factor` converts it to the unit the paper prints.

    Larger is better, unless the column `falls`.
    """

    title: str
    metric: str
    digits: int = 2
    factor: float = 1.0
    falls: bool = False


@runtime_checkable
class TableRow(Protocol):
    """The properties of a recipe's row that a table reads."""

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


BySeed = Mapping[int, float]
"""A number of each seed."""


class Line(NamedTuple):
    """One line: the records of its finished seeds, and the paper's numbers."""

    row: TableRow
    records: Sequence[Mapping[str, Any]]

    def ours(self, column: Column) -> BySeed:
        found = [(r.get("seed", 0), (r.get("metrics") or {}).get(column.metric)) for r in self.records]
        return {seed: column.factor * value for seed, value in found if value is not None}

    def printed(self, column: Column) -> BySeed:
        value = self.row.paper.get(column.metric)
        return {} if value is None else {0: value}

    @property
    def diverged(self) -> int:
        """Number of seeds that diverged."""
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
    """Every row's finished records beside the paper's numbers, blank if missing.

    Rows with the same block and label are seeds of one line, shown as mean, standard deviation and number of
    seeds. In a line that names another as `versus`, numbers are marked that are better on average over the
    seeds both have, ours against ours and the paper's against the paper's. A row whose loss diverged gets a
    dash. Rows in `unseen` have no line of their own, but others may be compared with them.
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
    """The legend of the marks, with the number of finished pairs that have one."""
    pairs = [(line, by_key[line.row.versus]) for line in lines if line.row.versus in by_key]
    if not pairs:
        return []
    said = []
    for column in columns:
        run = [(a, b) for a, b in pairs if a.ours(column).keys() & b.ours(column).keys()]
        ours = sum(_cell(a.ours(column), b.ours(column), column).better for a, b in run)
        theirs = sum(_cell(a.printed(column), b.printed(column), column).better for a, b in run)
        known = sum(bool(a.printed(column) and b.printed(column)) for a, b in run)
        if run:
            paper = f", the paper's in {theirs} of {known}" if known else ""
            said.append(f"{column.title} in {ours} of {len(run)} pairs run{paper}")
    return [f"Marked: {BETTER}{': ' if said else ''}{'; '.join(said)}."]


def _distance(lines: Sequence[Line], columns: Sequence[Column]) -> list[str]:
    """Median difference between ours and the paper's, over the rows that both have."""
    said = []
    for column in columns:
        both = [(line.ours(column), line.printed(column)) for line in lines]
        apart = [fmean(ours.values()) - theirs[0] for ours, theirs in both if ours and theirs]
        if apart:
            said.append(f"{column.title} {median(apart):+.{column.digits}f} ({len(apart)} rows)")
    return [f"Median of ours minus the paper's: {', '.join(said)}."] if said else []


def _lines(rows: Iterable[TableRow], records: Records) -> list[Line]:
    """Rows grouped by block and label, in order of first appearance."""
    groups: dict[tuple[str, str], list[TableRow]] = {}
    for row in rows:
        groups.setdefault((row.block, row.label), []).append(row)
    return [Line(some[0], [records[r.key] for r in some if r.key in records]) for some in groups.values()]


def _cell(values: BySeed, other: BySeed | None, column: Column, diverged: int = 0) -> Cell:
    if not values:
        return Cell("–" if diverged else "")
    digits = column.digits
    many = f" ± {stdev(values.values()):.{digits}f} ({len(values)})" if len(values) > 1 else ""
    many += f" ({diverged} more diverged)" if diverged else ""
    return Cell(f"{fmean(values.values()):.{digits}f}{many}", _better(values, other or {}, column))


def _better(values: BySeed, other: BySeed, column: Column) -> bool:
    """Whether values are better than the others of the same seeds, at the number of digits shown."""
    both = values.keys() & other.keys()
    if not both:
        return False
    mine, theirs = (round(fmean(some[seed] for seed in both), column.digits) for some in (values, other))
    return mine < theirs if column.falls else mine > theirs


def to_terminal(grid: Grid) -> Any:
    """A table and its notes for rich to print; the better of a pair is bold and starred."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = Text(printable(grid.title)) if grid.title else None
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.header_style = "bold"
    for place, head in enumerate(grid.columns):
        words = place < grid.words
        table.add_column(head, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    room = " " if any_better(grid) else ""  # keeps numbers aligned, starred or not
    for heading, body in grid.blocks:
        if heading:
            table.add_row(Text(printable(heading), style="bold"))
        for cells in body:
            table.add_row(
                *(
                    Text(f"{printable(c.text)}*", style="bold")
                    if c.better
                    else Text(printable(c.text) + room)
                    for c in cells
                )
            )
        table.add_section()
    return Group(table, *(Text(printable(note.replace("Marked:", "*"))) for note in grid.notes))


def any_better(grid: Grid) -> bool:
    """Whether a cell is the better of a pair."""
    return any(cell.better for _, body in grid.blocks for cells in body for cell in cells)


def to_markdown(grid: Grid) -> str:
    """A GitHub Markdown table and its notes; the better of a pair is bold."""
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
    """Text escaped for Markdown.

    >>> print(_plain("0.5*R_sm"))
    0.5\\*R\\_sm
    """
    return re.sub(r"([|*_\\<])", r"\\\1", text)


def fill(path: Path, name: str, text: str) -> None:
    """Replace the text between `<!-- name -->` and `<!-- end name -->` in a Markdown file."""
    with reading(path, "Expected a Markdown file in UTF-8."):
        page = path.read_text(encoding="utf-8")
    start, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
    before, found, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path} has no markers for {name}. Add two lines: {start.strip()} and {end}")
    write_text(path, f"{before}{start}{text}{end}{after}")

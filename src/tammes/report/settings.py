"""The last section of a page: settings, and where the numbers come from."""

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from tammes.report.page import Section, wide
from tammes.report.subject import Subject
from tammes.report.tables import Cell, Grid


def settings(subjects: Sequence[Subject]) -> list[Section]:
    """What has to be known to do it again and to judge the numbers."""
    recorded = [s for s in subjects if s.record]
    if not recorded:
        return []
    parts = [wide(_differences(recorded))] if len(recorded) > 1 else []
    parts.append(wide(_origins(recorded)))
    parts += [
        f"<details><summary>All of {escape(s.label)}</summary><pre>{escape(_text(s.record))}</pre></details>"
        for s in recorded
    ]
    words = "Enough to run it again; the same settings and seed give the same numbers on the same machine."
    return [Section("Settings and provenance", words, "".join(parts))]


def _differences(subjects: Sequence[Subject]) -> Grid:
    """The settings in which the runs differ, one a row."""
    configs = [s.record.get("config", {}) for s in subjects]
    names = list(dict.fromkeys(name for config in configs for name in config))
    rows = [
        [name, *(str(config.get(name, "")) for config in configs)]
        for name in names
        if len({str(config.get(name)) for config in configs}) > 1
    ]
    heads = ["setting", *(s.name for s in subjects)]
    return Grid("Where the settings differ", heads, _block(rows), words=len(heads))


def _origins(subjects: Sequence[Subject]) -> Grid:
    rows = []
    for s in subjects:
        versions, machine = s.record.get("versions", {}), s.record.get("machine", {})
        software = ", ".join(f"{name} {versions[name]}" for name in ("tammes", "torch") if versions.get(name))
        hardware = f"{machine.get('processor', '')} ({machine.get('device', '')})"
        seconds = s.record.get("seconds")
        time = "" if seconds is None else f"{seconds:,.1f}"
        date = s.record.get("date", "").replace("T", " ")[:16]
        rows.append([s.name, date, software, hardware, time])
    heads = ["", "date, UTC", "software", "machine", "seconds"]
    return Grid("Where and when", heads, _block(rows), words=len(heads) - 1)


def _block(rows: list[list[str]]) -> list[tuple[str, list[list[Cell]]]]:
    return [("", [[Cell(text) for text in row] for row in rows])]


def _text(record: Any) -> str:
    return json.dumps(record, indent=1, ensure_ascii=False)

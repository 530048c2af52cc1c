"""Settings of runs: those that differ between runs, all others, and provenance."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tammes.lab.report.model_results import ModelResults
from tammes.lab.report.page import Section
from tammes.lab.report.tables import Cell, Grid
from tammes.lab.report.templating import render

SILENT = {"data", "data_root", "workers", "device"}
"""Settings that do not change a model. Different data sets are shown in separate blocks."""


def setting(config: Mapping[str, Any], name: str) -> str:
    """The value of a setting as text; empty where it is not set."""
    value = config.get(name)
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def differing_settings(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the settings in which the runs of `records` differ as asked; "objective" if there are none.

    Records of older versions do not store what was asked; the settings that both have are compared.

    >>> runs = [{"config": {"lr": 0.1, "prototype_lr": 0.1}}, {"config": {"lr": 0.2, "prototype_lr": 0.2}}]
    >>> differing_settings([run | {"asked": {"lr": run["config"]["lr"]}} for run in runs])
    ['lr']
    """
    known = [record for record in records if record.get("config")]
    configs = [record["config"] for record in known]
    names = list(dict.fromkeys(name for config in configs for name in config))
    names.sort(key=lambda name: name != "objective")
    found: dict[tuple[str, ...], str] = {}
    for name in names:
        values = tuple(setting(config, name) for config in configs)
        if name not in SILENT and _differs(configs, name):
            found.setdefault(values, name)  # skip settings that vary together with another one
    chosen = [name for name in found.values() if _asked_to_differ(known, name)]
    return chosen or list(found.values()) or [name for name in names if name == "objective"]


def _differs(configs: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether a setting has several values. Versions without it, older or newer ones, do not count."""
    return len({setting(config, name) for config in configs if name in config}) > 1


def _asked_to_differ(records: Sequence[Mapping[str, Any]], name: str) -> bool:
    asked = [record["asked"] for record in records if "asked" in record]
    return len(asked) < len(records) or len({setting(one, name) for one in asked}) > 1


def settings(models: Sequence[ModelResults]) -> list[Section]:
    """What is needed to reproduce the run and to judge its numbers."""
    recorded = [model for model in models if model.record]
    if not recorded:
        return []
    grids = [_origins(recorded)]
    if len(recorded) > 1 and (different := _differences(recorded)) is not None:
        grids.insert(0, different)
    records = [(m.label, json.dumps(m.record, indent=1, ensure_ascii=False)) for m in recorded]
    text = "To reproduce the run: the same settings and seed give the same numbers on the same machine."
    return [Section("Settings and provenance", text, render("settings.html", grids=grids, records=records))]


def _differences(models: Sequence[ModelResults]) -> Grid | None:
    """One row per setting that differs."""
    configs = [model.config for model in models]
    names = dict.fromkeys(name for config in configs for name in config)
    different = [name for name in names if _differs(configs, name)]
    rows = [[name, *(setting(config, name) for config in configs)] for name in different]
    heads = ["setting", *(model.name for model in models)]
    return Grid("Settings that differ", heads, _block(rows), words=len(heads)) if rows else None


def _origins(models: Sequence[ModelResults]) -> Grid:
    rows = []
    for model in models:
        versions, machine = model.record.get("versions", {}), model.record.get("machine", {})
        software = ", ".join(f"{name} {versions[name]}" for name in ("tammes", "torch") if versions.get(name))
        hardware = f"{machine.get('processor', '')} ({machine.get('device', '')})"
        seconds = model.record.get("seconds")
        time = "" if seconds is None else f"{seconds:,.1f}"
        date = model.record.get("date", "").replace("T", " ")[:16]
        rows.append([model.name, date, software, hardware, time])
    heads = ["", "date, UTC", "software", "machine", "seconds"]
    return Grid("Provenance", heads, _block(rows), words=len(heads) - 1)


def _block(rows: list[list[str]]) -> list[tuple[str, list[list[Cell]]]]:
    return [("", [[Cell(text) for text in row] for row in rows])]

"""Render the HTML and SVG templates in `templates/` with jinja2; values are escaped."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **values: Any) -> Markup:
    """Render a template with `values`.

    >>> render("paragraphs.html", text="k < d\\n\\nsecond")
    Markup('<p>k &lt; d</p><p>second</p>')
    """
    return Markup(_environment().get_template(template).render(values))


def asset(name: str) -> Markup:
    """The unrendered content of a file in `templates/`: style sheets, scripts and drawings."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def number(value: float, digits: int) -> str:
    """Format a number with thousands separators and a proper minus sign.

    >>> number(-1234.5, 2)
    '−1,234.50'
    """
    return f"{value:,.{digits}f}".replace("-", "−")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["px"] = lambda value: f"{value:.1f}"
    environment.globals["asset"] = asset
    return environment

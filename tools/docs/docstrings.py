"""A griffe extension that converts docstrings to Markdown.

Docstrings are written for `help()` and Sphinx, with `:math:`, `.. math::` and bare doctests. These become TeX
between dollar signs and fenced code blocks.
"""

import re
from typing import Any

import griffe

ROLE = re.compile(r":math:`([^`]+)`")
DIRECTIVE = re.compile(r"^( *)\.\. math::(?: (.+)\n|\n((?:\1 +.*\n|\n(?=\1 +\S))+))", re.MULTILINE)
DOCTEST = re.compile(r"^>>> .*(?:\n(?!$).+)*(?:\n\n>>> .*(?:\n(?!$).+)*)*", re.MULTILINE)


def to_markdown(text: str) -> str:
    """
    >>> to_markdown("The angle :math:`\\\\theta`.")
    'The angle $\\\\theta$.'
    >>> to_markdown("Sum:\\n\\n.. math::\\n    a + b\\n\\nof two")
    'Sum:\\n\\n$$\\na + b\\n$$\\n\\nof two'
    """
    text = DIRECTIVE.sub(_display, text + "\n")[:-1]
    text = ROLE.sub(lambda match: f"${' '.join(match[1].split())}$", text)
    return DOCTEST.sub(lambda match: f"```pycon\n{match[0]}\n```", text)


def _display(match: re.Match[str]) -> str:
    lines = [line.strip() for line in (match[2] or match[3]).strip("\n").split("\n")]
    return "$$\n" + "\n".join(lines) + "\n$$\n"


class Docstrings(griffe.Extension):
    """Rewrites the docstring of every object."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)

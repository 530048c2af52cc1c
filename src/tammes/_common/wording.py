"""Wording shared by error messages and warnings."""

from collections.abc import Sequence

SHOWN_NAMES = 5


def few(names: Sequence[str]) -> str:
    """The first five names, quoted, and the number of those left out.

    >>> few(["cat", "dog"])
    "'cat', 'dog'"
    >>> few(list("abcdefg"))
    "'a', 'b', 'c', 'd', 'e' and 2 more"
    """
    hidden = len(names) - SHOWN_NAMES
    return ", ".join(map(repr, names[:SHOWN_NAMES])) + (f" and {hidden} more" if hidden > 0 else "")

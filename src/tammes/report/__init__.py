"""Tables, figures and pages from records; never training.

>>> import numpy as np
>>> from tammes.report import inspect, write_page
>>> rng = np.random.default_rng(0)
>>> found = inspect(rng.normal(size=(90, 8)) + 4 * np.eye(8)[np.arange(90) % 3], np.arange(90) % 3)
>>> found.numbers["accuracy"]
1.0
>>> write_page([found], "page.html")  # doctest: +SKIP
"""

from tammes.report.contents import write_page
from tammes.report.inspection import inspect
from tammes.report.page import Section
from tammes.report.subject import Subject

__all__ = ["Section", "Subject", "inspect", "write_page"]

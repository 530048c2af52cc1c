"""Tables, figures and HTML pages from the records of runs; nothing here trains.

>>> import numpy as np
>>> from tammes.lab.report import inspect, write_page
>>> rng = np.random.default_rng(0)
>>> found = inspect(rng.normal(size=(90, 8)) + 4 * np.eye(8)[np.arange(90) % 3], np.arange(90) % 3)
>>> found.numbers["accuracy"]
1.0
>>> write_page([found], "page.html")  # doctest: +SKIP
"""

from tammes._common.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)

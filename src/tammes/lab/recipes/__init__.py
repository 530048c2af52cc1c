"""The paper's experiments. Each file has one table, which its function `table` returns as a value.

The keyword arguments of `table` are the flags of `tammes reproduce NAME`. Four of them mean the same
in every file: `preset` ("paper": the settings of the paper; "laptop": a smaller network and fewer epochs),
`data_root` (root directory of the data sets), `out` (directory of the records) and `runs` (directory of the
run folders).

>>> from tammes.lab.recipes import table1
>>> from tammes.lab.recipes.table import reproduce
>>> grid = reproduce(table1.table(dataset="mnist"), rows=["normface-s64*"])  # doctest: +SKIP
"""

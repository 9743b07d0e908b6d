"""Outcomes side by side: as a table in a terminal, as data, and as one page that needs nothing but a browser."""

from carrel.simulate.report.comparison import Comparison, NotebookRow, as_json
from carrel.simulate.report.page import page, write_report
from carrel.simulate.report.table import Table, compare, notebooks_table, policies_table, together_table

__all__ = [
    "Comparison",
    "NotebookRow",
    "Table",
    "as_json",
    "compare",
    "notebooks_table",
    "page",
    "policies_table",
    "together_table",
    "write_report",
]

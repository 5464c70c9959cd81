"""Notebooks in batches, here or on a cluster; it knows `runs` and the parameters of `engine`.

notebook         one notebook with parameters, and its `report`
jobs             many side by side, shown by `job_progress`; on Ray by `cluster`
planning         runs named by their content, grids; `ensure_runs` makes those that are missing
"""

from plc_core.batch.notebook import NotebookError, run_notebook

__all__ = ["NotebookError", "run_notebook"]

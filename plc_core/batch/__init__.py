"""Notebooks in batches: one with parameters, or many jobs side by side, here or on a cluster."""

from plc_core.batch.notebook import NotebookError, run_notebook

__all__ = ["NotebookError", "run_notebook"]

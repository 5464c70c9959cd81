"""Figures of the inspector alone; those that notebooks draw too: `plc_core.analysis.figures`."""

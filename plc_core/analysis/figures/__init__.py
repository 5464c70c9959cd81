"""Plotly figures: table in, figure out, for notebook and app alike; `__init__.pyi` lists them.

Never a pie or bar of the most likely state: the tie state is the largest weight at no z under any
plausible prior, so such a picture would say "no ties" whatever the data hold.

A figure's module is read when the figure is asked for: those that need scikit-learn would add a
second to the inspector's first page.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

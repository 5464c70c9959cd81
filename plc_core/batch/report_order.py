"""The order of a report: what was found, a picture of it, its tables, then how to read them."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from nbformat.v4 import new_code_cell, new_markdown_cell

FINDING = "<!-- finding -->"
"""Ends the Markdown or HTML of what a notebook found, unseen: a report begins with it. Markdown
behind it says more of it, below the picture and the tables."""

FIGURE = "application/vnd.plotly.v1+json"
HOW = "## How to read this"
_ASIDE = "*How to read this.* "
"""Begins such a text inside a notebook, where no heading says so."""


def finding_first(cells: Iterable[Any]) -> list[Any]:
    """The cells of an executed notebook as its report shows them; those given stay as they are.

    First the title, what was found (see `FINDING`), and the sections up to the first with a figure,
    their figures before their tables; then what they and the introduction say; then the rest in its
    order. A notebook with neither a finding nor a figure in its introduction keeps its order.
    """
    sections = _sections(deepcopy(list(cells)))
    place = next((n for n, own in enumerate(sections) if any(map(_has_figure, own))), None)
    found = [out for own in sections for cell in own for out in _taken(cell)]
    detail = [new_markdown_cell(text) for text in map(_detail, found) if text]
    if place is None or not (found or place == 0):
        return [cell for own in _sections(list(cells)) for cell in own]
    intro, lead = sections[0], sections[1 : place + 1]
    title, said = _title(intro)
    text = [part.replace(_ASIDE, "") for part in (said, *(_title(own)[1] for own in lead))]
    code = [cell for cell in intro if cell["cell_type"] == "code"]
    # Figures first; the sort keeps their order and that of the tables.
    outputs = [out for own in lead for cell in own for out in cell.get("outputs", [])]
    pictures = new_code_cell(outputs=sorted(outputs, key=lambda out: not _is_figure(out)))
    how = [new_markdown_cell("\n\n".join([HOW, *filter(None, text)]))] if any(text) else []
    first = [pictures, *detail, *how, *code] if lead else [*code, *detail, *how]
    rest = [cell for own in sections[place + 1 :] if _says(own) for cell in own]
    return [title, new_code_cell(outputs=found), *first, *rest]


def _sections(cells: list[Any]) -> list[list[Any]]:
    """Cells up to the next that begins with a heading."""
    found: list[list[Any]] = []
    for cell in cells:
        if not found or (cell["cell_type"] == "markdown" and cell["source"].startswith("#")):
            found.append([])
        found[-1].append(cell)
    return found


def _title(section: list[Any]) -> tuple[Any, str]:
    """A section's heading as a cell, and all other text of it."""
    texts = [cell["source"] for cell in section if cell["cell_type"] == "markdown"]
    head, _, rest = "\n\n".join(texts).partition("\n")
    return new_markdown_cell(head), rest.strip()


def _says(section: list[Any]) -> bool:
    """Whether there is more than a heading, as where what was found was all of it."""
    return bool(_title(section)[1]) or any(cell.get("outputs") for cell in section)


def _taken(cell: Any) -> list[Any]:
    """What the cell shows as found, taken out of it."""
    outputs = cell.get("outputs", [])
    found = [out for out in outputs if any(FINDING in text for text in _texts(out))]
    if found:
        cell["outputs"] = [out for out in outputs if out not in found]
    return found


def _detail(found: Any) -> str:
    """The Markdown behind what was found, taken out of the output."""
    text, mark, detail = found["data"].get("text/markdown", "").partition(FINDING)
    if mark:
        found["data"]["text/markdown"] = text + mark
    return detail.strip()


def _texts(output: Any) -> list[str]:
    data = output.get("data", {})
    return [data.get(kind, "") for kind in ("text/markdown", "text/html")]


def _is_figure(output: Any) -> bool:
    return FIGURE in output.get("data", {})


def _has_figure(cell: Any) -> bool:
    return any(map(_is_figure, cell.get("outputs", [])))

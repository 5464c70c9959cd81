"""An executed notebook as one HTML file that opens without a network."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter
from nbconvert.preprocessors import Preprocessor
from plotly import io as plotly_io
from plotly.offline import get_plotlyjs

from plc_core.batch.compressed_text import packed
from plc_core.batch.report_order import FIGURE, finding_first
from plc_core.storage.files import replacing

_WARNING = re.compile(r"^\S.*?:\d+: (?P<kind>\w*Warning): ", re.MULTILINE)
_CODE_LINE = re.compile(r"\n  \S.*\n?\Z")
_FOR_PROGRAMMERS = ("FutureWarning", "DeprecationWarning", "PendingDeprecationWarning")
_HEIGHT = 450
"""Pixels of a figure that names none, by plotly."""

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body>
{body}
{drawing}</body></html>
"""


def write_report(notebook: Path, html: Path) -> None:
    """Write the outputs and texts of an executed notebook, without its code, to `html`.

    What was found comes first (see `report_order.finding_first`).

    Figures stay interactive: they and plotly are put into the file together, compressed, plotly
    once and only if there are any. That takes 1.7 MB and not 4.8.
    """
    # The template of the body alone: JupyterLab's style, 0.3 MB, is for what no report has.
    exporter = HTMLExporter(template_name="basic", exclude_input=True, exclude_output_prompt=True)
    figures = _Figures()
    exporter.register_preprocessor(figures, enabled=True)
    exporter.register_preprocessor(_Warnings, enabled=True)
    content = nbformat.read(notebook, as_version=4)
    content["cells"] = finding_first(content["cells"])
    body, _ = exporter.from_notebook_node(content)
    page = _PAGE.format(
        title=escape(notebook.parent.name),
        style=_beside("report.css"),
        body=body,
        drawing=_drawing(figures.found) if figures.found else "",
    )
    with replacing(html) as written:
        written.write_text(page, encoding="utf-8")


def _drawing(figures: list[str]) -> str:
    """Figures and plotly, compressed, and what draws them."""
    text = f"[{','.join(figures)}]\n{get_plotlyjs()}"
    holder = f'<script type="text/plain" id="packed">{packed(text)}</script>'
    return f"{holder}<script>{_beside('report_layout.js')}{_beside('report.js')}</script>"


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


class _Figures(Preprocessor):
    """Takes the figures out, as JSON on a line each, and leaves a place for each."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def preprocess_cell(self, cell: Any, resources: Any, index: int) -> tuple[Any, Any]:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if FIGURE in data:
                figure = plotly_io.from_json(_as_json(data[FIGURE]), skip_invalid=True)
                self.found.append(figure.to_json())
                height = figure.layout.height or _HEIGHT
                data["text/html"] = f'<div class="plc-figure" style="min-height:{height}px"></div>'
                del data[FIGURE]
        return cell, resources


class _Warnings(Preprocessor):
    """Each warning of a cell once and as its sentence, without the line of code that gave it.

    They stand below what the cell shows, without those that it says itself. What is for programmers
    is left out; the notebook beside the report has it.
    """

    def preprocess_cell(self, cell: Any, resources: Any, index: int) -> tuple[Any, Any]:
        outputs, warnings, told = [], [], set()
        shown = [o["data"].get("text/html", "") for o in cell.get("outputs", []) if "data" in o]
        for output in cell.get("outputs", []):
            if output.get("output_type") == "stream" and output.get("name") == "stderr":
                sentences = dict.fromkeys(_sentences(output["text"]))
                said = [sentence for sentence in sentences if sentence not in told]
                said = [s for s in said if not any(escape(s) in html for html in shown)]
                told.update(said)
                output["text"] = "".join(f"{line}\n" for line in said)
                if said:
                    warnings.append(output)
                continue
            outputs.append(output)
        if "outputs" in cell:
            cell["outputs"] = outputs + warnings
        return cell, resources


def _sentences(text: str) -> list[str]:
    """What standard error holds: warnings as their messages, other text line by line."""
    places = list(_WARNING.finditer(text))
    starts = [*(place.start() for place in places), len(text)]
    found = [line.rstrip() for line in text[: starts[0]].splitlines()]
    for place, end in zip(places, starts[1:], strict=True):
        if place["kind"] not in _FOR_PROGRAMMERS:
            found.append(_CODE_LINE.sub("", text[place.end() : end]).strip())
    return [sentence for sentence in found if sentence.strip()]


def _as_json(figure: dict[str, Any]) -> str:
    return json.dumps({"data": figure.get("data", []), "layout": figure.get("layout", {})})

"""An executed notebook as one HTML file that opens without a network."""

from __future__ import annotations

import base64
import gzip
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

from plc_core.batch.report_order import FIGURE, finding_first
from plc_core.files import replacing

_STYLE = """
body.jp-Notebook { max-width: 1080px; margin: 0 auto; padding: 24px 16px 64px; }
.jp-InputPrompt, .jp-OutputPrompt { display: none; }
.jp-OutputArea-child { display: block; }
.jp-OutputArea-output { display: block !important; box-sizing: border-box; width: 100%; }
.js-plotly-plot { margin-bottom: 1rem; }
.jp-RenderedText pre { white-space: pre-wrap !important; word-break: normal !important; }
.jp-RenderedHTMLCommon h2 { margin-top: 1.2em; }
.jp-RenderedHTMLCommon table { font-size: 13px; margin-left: 0; }
.jp-RenderedHTMLCommon table th, .jp-RenderedHTMLCommon table td {
  text-align: left !important; white-space: pre-line; vertical-align: top;
}
"""
_WARNING = re.compile(r"^\S.*?:\d+: (?P<kind>\w*Warning): ", re.MULTILINE)
_CODE_LINE = re.compile(r"\n  \S.*\n?\Z")
_FOR_PROGRAMMERS = ("FutureWarning", "DeprecationWarning", "PendingDeprecationWarning")
_HOLDER = '<script class="plc-figure" type="application/json">'
_SCRIPT = Path(__file__).with_name("report.js")


def write_report(notebook: Path, html: Path) -> None:
    """Write the outputs and texts of an executed notebook, without its code, to `html`.

    What was found comes first (see `report_order.finding_first`).

    Figures stay interactive: plotly is put into the file once, if there are any, compressed, which
    takes 2 MB and not 4.8.
    """
    exporter = HTMLExporter(
        exclude_input=True,
        exclude_output_prompt=True,
        # Both would be fetched from elsewhere whenever the report is opened.
        mathjax_url="",
        require_js_url="",
    )
    exporter.register_preprocessor(_Figures, enabled=True)
    exporter.register_preprocessor(_Warnings, enabled=True)
    content = nbformat.read(notebook, as_version=4)
    content["cells"] = finding_first(content["cells"])
    body, _ = exporter.from_notebook_node(content, {"metadata": {"name": notebook.parent.name}})
    body = body.replace("</head>", f"<style>{_STYLE}</style></head>", 1)
    if _HOLDER in body:
        before, end, after = body.rpartition("</body>")
        body = f"{before}{_drawing()}{end}{after}"
    with replacing(html) as written:
        written.write_text(body, encoding="utf-8")


def _drawing() -> str:
    """Plotly, compressed, and what draws the figures with it."""
    coded = base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
    script = _SCRIPT.read_text(encoding="utf-8")
    return f'<script type="text/plain" id="plotly">{coded}</script><script>{script}</script>'


class _Figures(Preprocessor):
    def preprocess_cell(self, cell: Any, resources: Any, index: int) -> tuple[Any, Any]:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if FIGURE in data:
                figure = plotly_io.from_json(_as_json(data[FIGURE]), skip_invalid=True)
                text = figure.to_json().replace("<", "\\u003c")  # no text ends the script
                data["text/html"] = f"{_HOLDER}{text}</script>"
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

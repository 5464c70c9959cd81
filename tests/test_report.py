"""The HTML report: what was found first, small, and alive without a network."""

import gzip
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import plotly.graph_objects as go
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from plotly.subplots import make_subplots

from notebooks.studies import objective_curves, study
from plc_core.batch.compressed_text import UNSAFE, packed
from plc_core.batch.report import write_report
from plc_core.batch.report_order import FIGURE, FINDING, HOW, finding_first
from plc_core.runs import create_run
from tests.browser import CHROMIUM_FLAGS, chromium
from tests.paths import LARGEST_REPORT

NASTY = "</script><script>document.title = 'owned'</script>"


def shown(data: dict[str, Any]) -> Any:
    return new_output("display_data", data=data)


def drawn(figure: go.Figure) -> Any:
    return shown({FIGURE: figure.to_plotly_json()})


def words(cells: list[Any]) -> list[str]:
    """What a report shows, in order: text, a figure as its first title, other outputs."""
    said = []
    for cell in cells:
        if cell["cell_type"] == "markdown":
            said.append(cell["source"])
        for out in cell.get("outputs", []):
            data = out["data"]
            said.append("figure" if FIGURE in data else next(iter(data.values())))
    return said


CELLS = [
    new_markdown_cell("# A question\n\nIts terms."),
    new_code_cell("config", outputs=[shown({"text/plain": "runs"})]),
    new_markdown_cell("## A section\n\nWhat it measures."),
    new_code_cell("table", outputs=[shown({"text/html": "table"})]),
    new_code_cell("figure", outputs=[drawn(go.Figure())]),
    new_markdown_cell("## Another\n\nText."),
    new_markdown_cell("## What was found"),
    new_code_cell(
        "end", outputs=[shown({"text/markdown": f"**It wins 60 %.**{FINDING}\n\nOften."})]
    ),
]


def test_a_report_begins_with_what_was_found_a_picture_and_its_table() -> None:
    how = f"{HOW}\n\nIts terms.\n\nWhat it measures."
    assert words(finding_first(CELLS)) == [
        *("# A question", f"**It wins 60 %.**{FINDING}", "figure", "table", "Often.", how),
        *("runs", "## Another\n\nText."),
    ]
    assert CELLS[-1]["outputs"], "the notebook itself stays as it is"


def test_a_report_without_a_finding_keeps_its_order() -> None:
    assert words(finding_first(CELLS[:-1])) == words(CELLS[:-1])
    failed = [CELLS[0], CELLS[1]]
    assert words(finding_first(failed)) == words(failed)
    first = [CELLS[0], CELLS[4], CELLS[5]]
    order = ["# A question", "figure", f"{HOW}\n\nIts terms.", "## Another\n\nText."]
    assert words(finding_first(first)) == order


def test_the_sentence_of_a_study_is_a_finding(tmp_path: Path) -> None:
    run = create_run(tmp_path, "study", {"kind": "analysis", "least_steps": 955})
    assert study.concluded(run, "It wins.") == f"**It wins.**{FINDING}"


def test_what_is_packed_is_unpacked_and_is_no_markup() -> None:
    for text in ("", "a", "é<&\0\r" * 7, "".join(map(chr, range(0xD800)))):
        signs = packed(text)
        assert not set(signs) & set(map(chr, UNSAFE))
        bits = "".join(f"{ord(sign) % 128:07b}" for sign in signs)
        data = bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits) - 7, 8))
        assert gzip.decompress(data).decode() == text


def written(folder: Path, *figures: go.Figure, rows: int = 1, columns: int = 1) -> Path:
    """The report of a notebook with these figures and a table."""
    row = f"<tr>{'<td>0.123 [0.012, 0.234]</td>' * columns}</tr>"
    table = f"<table>{row * rows}</table>"
    outputs = [*map(drawn, figures), shown({"text/html": table})]
    cells = [new_markdown_cell("# A question"), new_code_cell("x", outputs=outputs)]
    nbformat.write(new_notebook(cells=cells), folder / "notebook.ipynb")
    write_report(folder / "notebook.ipynb", folder / "report.html")
    return folder / "report.html"


def test_figures_are_drawn_and_saved_without_a_network(tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    bars = go.Figure(go.Bar(y=[1, 2])).update_layout(title=NASTY, height=300)
    line = go.Figure(go.Scatter(y=[2, 1])).update_layout(title="é, β and 中")
    report = written(tmp_path, bars, line)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        page = browser.new_page()
        page.context.set_offline(True)
        page.goto(report.as_uri())
        page.locator(".js-plotly-plot").nth(1).wait_for()
        assert page.locator(".gtitle").last.text_content() == "é, β and 中"
        with page.expect_download() as saved:
            page.locator(".js-plotly-plot").first.hover()
            page.locator("[data-title='Save as SVG']").first.click()
        assert Path(saved.value.path()).read_text().startswith("<svg")
        assert page.title() != "owned"
        browser.close()


CONTRAST = """(text) => {
  const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3)
    .map((n) => n / 255).map((n) => n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4)
    .reduce((sum, n, place) => sum + n * [0.2126, 0.7152, 0.0722][place], 0.05);
  const pair = [getComputedStyle(text).fill, getComputedStyle(document.body).backgroundColor];
  const [dark, bright] = pair.map(light).sort((a, b) => a - b);
  return bright / dark;
}"""
"""Of a figure's text with the page, as the Web Content Accessibility Guidelines compute it."""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_fits_a_phone_and_its_text_is_legible_in_either_theme(
    tmp_path: Path, theme: Any
) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    panels = make_subplots(rows=1, cols=2, subplot_titles=["left", "right"], shared_yaxes=True)
    panels.add_bar(y=[1, 2], row=1, col=1).add_bar(y=[2, 1], row=1, col=2)
    names = go.Figure(go.Scatter(x=[1, 2], y=["a very long name of a method", "short"]))
    shared = make_subplots(rows=2, cols=2, shared_xaxes=True)
    for row, col in ((1, 1), (1, 2), (2, 1), (2, 2)):
        shared.add_scatter(x=[0, 0.5, 1], y=[1, 2, 3], row=row, col=col)
    shared.update_xaxes(title_text="share", tickformat=".0%", dtick=0.5, row=2)
    report = written(tmp_path, panels, names, shared, columns=20)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1200, "height": 800}, color_scheme=theme)
        page.goto(report.as_uri())
        page.locator(".js-plotly-plot").nth(2).wait_for()
        for text in page.locator(".plc-figure text:visible").all():
            assert text.evaluate(CONTRAST) >= 4.5
        titles = [page.get_by_text(name, exact=True) for name in ("left", "right")]
        left, right = (title.bounding_box() for title in titles)
        assert left["y"] == right["y"]
        page.set_viewport_size({"width": 390, "height": 800})
        page.wait_for_function("document.querySelector('.plc-figure').offsetHeight > 500")
        left, right = (title.bounding_box() for title in titles)
        assert left["x"] == pytest.approx(right["x"], abs=5)
        assert right["y"] > left["y"] + 150
        page.wait_for_function("document.querySelectorAll('.plc-figure')[2].offsetHeight > 700")
        halves = page.get_by_text("50%", exact=True)
        sync_api.expect(halves).to_have_count(4)  # each panel has its own
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        table = page.locator(".output_subarea:has(table)")
        assert table.evaluate("(own) => own.scrollWidth > own.clientWidth"), "it scrolls by itself"
        page.emulate_media(media="print", color_scheme=theme)
        assert (
            page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        )
        browser.close()


def test_a_report_is_read_without_scripts(tmp_path: Path) -> None:
    text = written(tmp_path, go.Figure()).read_text()
    assert "A question" in text
    assert "<td>0.123 [0.012, 0.234]</td>" in text
    without = written(tmp_path).read_text()
    assert "<script" not in without, "nothing to draw takes no plotly"
    assert len(without) < 5_000


def test_a_report_with_much_in_it_is_at_most_2_mb(tmp_path: Path) -> None:
    """As much as in the largest reports that the project makes, together.

    Those are the objectives (54 curves of 201 points), the demo's (three of 2,000 points) and the
    evidence (79 kB of tables).
    """
    random = np.random.default_rng(0).normal
    curves = go.Figure([go.Scatter(x=np.linspace(-4, 4, 201), y=random(size=201))] * 54)
    points = go.Figure([go.Scatter(x=random(size=2_000), y=random(size=2_000)) for _ in range(3)])
    report = written(tmp_path, curves, points, rows=2_500)
    assert report.stat().st_size <= LARGEST_REPORT


def test_the_objectives_report_says_which_lets_a_reversed_pair_go() -> None:
    config = objective_curves.ObjectivesConfig(name="x", objectives=["dpo", "ropo", "ipo"])
    said = objective_curves.pull_sentence(objective_curves.objective_curves(config))
    # dL/dm of DPO at -4 is -sigma(4) = -0.98; of IPO 2 (m - 1/2) = -9 times 2 at beta 1.
    assert "m = −4" in said
    assert "dpo (0.98)" in said
    assert said.index("ropo") < said.index("dpo (") < said.index("greatest under ipo")

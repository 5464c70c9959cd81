"""The README's pictures, from the runs of `make demo` and `data/results`: `make pictures`."""

import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from notebooks import figures
from notebooks.evidence.estimates import read_study
from notebooks.studies import audit_gains
from plc_core.runs import open_run
from tests.browser import CHROMIUM_FLAGS, chromium, inspector
from tests.measure_inspector import SETTLED
from tests.paths import ROOT

PICTURES = ROOT / "data" / "pictures"
WIDTH, HEIGHTS = 1366, {"inspector": 1500, "report": 1150, "objectives": 900}
SETTLE_MS, LONGEST_MS = 5000, 120_000
STUDIES = {"Qwen 1.5B": "qwen", "SmolLM2": "label-audit", "World": "world"}


def main(runs: Path) -> None:
    """Photograph the pairs page on the pair reversed most, the demo's report and the curves."""
    visits = open_run(runs / "demo-plc").visits()
    reversal = visits["weight"] * visits["q_flip"]
    suspicious = visits["pair_id"][reversal.idxmax()]
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as playwright, inspector(runs) as address:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        shots = {
            "inspector": f"{address}/pairs?run=demo-plc&pair={suspicious}",
            "report": (runs / "demo-report" / "report.html").resolve().as_uri(),
            "objectives": (runs / "objectives" / "report.html").resolve().as_uri(),
        }
        for name, url in shots.items():
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHTS[name]})
            page.set_default_timeout(LONGEST_MS)
            page.goto(url)
            page.locator(".js-plotly-plot").first.wait_for()
            if url.startswith(address):
                page.wait_for_function(SETTLED)
            page.wait_for_timeout(SETTLE_MS)
            page.screenshot(path=PICTURES / f"{name}.png")
        _photograph_gains(browser)
        browser.close()


def _photograph_gains(browser: Browser) -> None:
    """What training on audited labels gains over DPO, in every study."""
    gained = {title: audit_gains.gains(read_study(name)) for title, name in STUDIES.items()}
    figure = figures.gains(audit_gains.gains_side_by_side(gained))
    figure.update_layout(font_color="#59636e")  # a report's, on white
    page = browser.new_page(viewport={"width": 960, "height": int(figure.layout.height) + 16})
    page.set_content(figure.to_html())
    page.locator(".js-plotly-plot").first.wait_for()
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=PICTURES / "gains.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "runs"))

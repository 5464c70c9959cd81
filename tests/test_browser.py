"""The app in a real headless Chromium: the main story, clicked through."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.browser import CHROMIUM_FLAGS, chromium, inspector
from tests.fake_run import write_fake_run

ROW = 33
"""Height of a table's row in pixels."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, the newer one first in the list; one of its texts tries to run a script."""
    root = tmp_path_factory.mktemp("runs")
    script = "<script>document.title = 'owned'</script> $x$ **b**"
    texts = ((script, "<img src=x onerror=\"document.title = 'owned'\">"),)
    write_fake_run(root, "older", seed=1)
    write_fake_run(root, "newer", seed=2, texts=texts)
    return root


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    """The address of the inspector of those runs."""
    chromium()
    with inspector(runs) as url:
        yield url


def test_from_the_runs_to_a_pair_and_back_by_its_link(address: str, runs: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    expect = sync_api.expect
    expect.set_options(timeout=20_000)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1366, "height": 900})

        def settled() -> None:
            expect(page.get_by_test_id("stApp")).to_have_attribute(
                "data-test-script-state", "notRunning"
            )
            expect(page.get_by_test_id("stException")).to_have_count(0)

        def click_row(number: int) -> None:
            box = page.get_by_test_id("stDataFrame").first.bounding_box()
            assert box is not None
            page.mouse.click(box["x"] + 16, box["y"] + ROW * (number + 1.5))

        page.goto(address)
        expect(page.get_by_role("heading", name="Runs")).to_be_visible()
        expect(page.locator(".js-plotly-plot").first).to_be_visible()
        settled()
        click_row(1)
        expect(page).to_have_url(f"{address}/?run=newer&run=older")
        page.get_by_role("tab", name="Provenance").click()
        expect(page.get_by_text("Only what differs")).to_be_visible()

        page.get_by_role("link", name="Pairs").click()
        expect(page.get_by_role("heading", name="Pairs")).to_be_visible()
        expect(page.get_by_text("200 of 200 pairs")).to_be_visible()
        settled()
        click_row(3)
        expect(page).to_have_url(f"{address}/pairs?run=newer&run=older&pair={_third(runs)}")
        expect(page.get_by_test_id("stCode").first).to_contain_text(_third(runs))
        expect(page.locator(".js-plotly-plot")).to_have_count(2)
        settled()

        page.get_by_role("link", name="Ties").click()
        expect(page.get_by_text("Mann–Whitney, bottom against top")).to_be_visible()
        settled()

        page.goto(f"{address}/pairs?run=newer&pair={_ids(runs)[0]}")
        answers = page.locator(".plc-text")
        expect(answers.nth(2)).to_have_text("<script>document.title = 'owned'</script> $x$ **b**")
        page.reload()
        expect(page.get_by_test_id("stCode").first).to_contain_text(_ids(runs)[0])
        expect(answers.nth(3)).to_contain_text("<img src=x onerror")
        settled()
        assert page.title() != "owned"
        browser.close()


def _ids(runs: Path) -> list[str]:
    return pd.read_parquet(runs / "newer" / "pairs.parquet", columns=["pair_id"])[
        "pair_id"
    ].tolist()


def _third(runs: Path) -> str:
    """The pair in the fourth row of the table, which is sorted by the correction."""
    visits = pd.concat(map(pd.read_parquet, sorted((runs / "newer" / "visits").iterdir())))
    visits["correction"] = visits["weight"] * visits["q_flip"]
    ordered = visits.sort_values(
        ["correction", "q_flip", "pair_id"], ascending=[False, False, True]
    )
    return str(ordered["pair_id"].iloc[3])

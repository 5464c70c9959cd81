"""The app in a real headless Chromium: the main story, clicked through."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from app.pair_list import PROMPT_WIDTH
from plc_core.data import load_pairs
from plc_core.runs import open_run
from plc_core.runs.decisions import read_decisions
from tests.browser import CHROMIUM_FLAGS, chromium, inspector
from tests.fake_run import write_fake_run
from tests.waiting import wait_for

LONGEST_MS = 300_000
"""How long a page is waited for: only for what hangs, as a busy machine takes its time."""

ROW, PAIR_ROW = 33, 29
"""Height of a table's row in pixels, and of one in the list of pairs."""

KEYS, KEYS_MS = int(os.environ.get("PLC_KEYS", "40")), 80
"""Decisions that are typed one after another, and the milliseconds between them."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, the newer one first in the list; one of its texts tries to run a script."""
    root = tmp_path_factory.mktemp("runs")
    script = "<script>document.title = 'owned'</script> $x$ **b**"
    texts = ((script, "<img src=x onerror=\"document.title = 'owned'\">"),)
    write_fake_run(root, "older", seed=1)
    write_fake_run(root, "newer", seed=2, epochs=2, texts=texts)
    return root


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    """The address of the inspector of those runs."""
    chromium()
    with inspector(runs) as url:
        yield url


@pytest.fixture
def page() -> Iterator[Any]:
    """A page of Chromium in a laptop's size."""
    sync_api = pytest.importorskip("playwright.sync_api")
    sync_api.expect.set_options(timeout=LONGEST_MS)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1366, "height": 768})
        page.set_default_timeout(LONGEST_MS)
        yield page
        browser.close()


def test_the_main_story(address: str, runs: Path, page: Any) -> None:
    from playwright.sync_api import expect

    def settled() -> None:
        expect(page.get_by_test_id("stApp")).to_have_attribute(
            "data-test-script-state", "notRunning"
        )
        expect(page.get_by_test_id("stException")).to_have_count(0)

    def click_row(number: int, height: int = ROW) -> None:
        table = page.get_by_test_id("stDataFrame").first
        table.scroll_into_view_if_needed()
        box = table.bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + 16, box["y"] + ROW + height * (number + 0.5))

    # Choose runs, and see what differs between them.
    page.goto(address)
    expect(page.get_by_text("How noisy are the data?")).to_be_visible()
    page.get_by_role("link", name="Runs").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    settled()
    both = f"{address}/runs?run=newer&run=older"
    _until(lambda: click_row(1), lambda ms: expect(page).to_have_url(both, timeout=ms))
    page.get_by_text("Provenance", exact=True).click()
    expect(page.get_by_text("Only what differs")).to_be_visible()
    settled()

    # Click a point of the map: its pair opens.
    page.get_by_role("link", name="Routing").click()
    expect(page.get_by_text("A map of the pairs")).to_be_visible()
    expect(page.locator(".js-plotly-plot")).to_have_count(6)
    settled()
    pair = _click_a_point(page, 1)
    expect(page.get_by_role("heading", name="Pairs")).to_be_visible()
    expect(page.locator(".plc-id")).to_contain_text(pair)
    settled()

    # Filter, choose a row, decide by the keyboard.
    page.get_by_label("Sort by").click()
    page.get_by_role("option", name="z", exact=True).click()
    expect(page.get_by_text("z, highest first").first).to_be_visible()
    settled()
    page.get_by_text("Ascending", exact=True).click()
    expect(page.get_by_text("z, lowest first").first).to_be_visible()
    settled()
    lowest = _ids_by_z(runs)
    chosen = expect(page.locator(".plc-id"))
    _until(lambda: click_row(2, PAIR_ROW), lambda ms: chosen.to_contain_text(lowest[2], timeout=ms))
    settled()
    page.keyboard.press("f")
    expect(page.locator(".plc-id")).to_contain_text(lowest[3])
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".plc-id")).to_contain_text(lowest[2])
    expect(page.get_by_role("button", name="flip")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".plc-id")).to_contain_text(lowest[3])
    # The browser shows a decision before the server has it.
    wait_for(lambda: lowest[2] in read_decisions(open_run(runs / "newer")))
    assert read_decisions(open_run(runs / "newer"))[lowest[2]].decision == "flip"
    settled()

    # Export, and read the cleaned pairs back.
    page.get_by_text("Export cleaned data").click()
    page.get_by_role("button", name="Write the file").click()
    settled()
    written = runs / "newer" / "decisions" / "cleaned.json"
    for _ in range(100):
        if written.exists():
            break
        page.wait_for_timeout(200)
    settled()
    said = page.get_by_text("Written: keep 0, flip 1")
    for _ in range(5):  # the box may be open or shut, and a click turns it
        try:
            expect(said).to_be_visible(timeout=6000)
            break
        except AssertionError:
            page.get_by_text("Export cleaned data").click()
    expect(said).to_be_visible()
    cleaned = load_pairs(runs / "newer" / "decisions" / "cleaned.parquet")
    assert len(cleaned) == 200

    # The link alone opens the same view.
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator(".plc-id")).to_contain_text(lowest[3])
    expect(page.get_by_text("z, lowest first").first).to_be_visible()
    settled()
    for name in ("Ties", "Human disagreement", "Corruption", "Tests", "Win rates"):
        page.get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", name=name)).to_be_visible()
        settled()

    # Texts that try to break out are shown as they are.
    first = pd.read_parquet(runs / "newer" / "pairs.parquet", columns=["pair_id"])["pair_id"][0]
    page.goto(f"{address}/pairs?run=newer&pair={first}")
    answers = page.locator(".plc-text")
    expect(answers.nth(2)).to_have_text("<script>document.title = 'owned'</script> $x$ **b**")
    expect(answers.nth(3)).to_contain_text("<img src=x onerror")
    settled()
    assert page.title() != "owned"


def test_parts_of_the_page_of_pairs_run_alone(address: str, runs: Path, page: Any) -> None:
    from playwright.sync_api import expect

    def settled(tab: Any) -> None:
        expect(tab.get_by_test_id("stApp")).to_have_attribute(
            "data-test-script-state", "notRunning"
        )

    def head_clicked() -> None:
        table = page.get_by_test_id("stDataFrame").first
        expect(table.locator("canvas").first).to_be_visible()
        settled(page)
        page.wait_for_timeout(1000)  # a table takes clicks some time after it is drawn
        box = table.bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + 33 + PROMPT_WIDTH + 30, box["y"] + ROW / 2)

    # The head of the column that the list is sorted by: the other way round, and back.
    page.goto(f"{address}/pairs?run=newer&sort=z")
    expect(page.get_by_text("z, highest first").first).to_be_visible()
    for end in ("lowest", "highest"):
        head_clicked()
        expect(page.get_by_text(f"z, {end} first").first).to_be_visible()
        page.wait_for_url(lambda url, rising=end == "lowest": ("rising=1" in url) == rising)

    # What one tab decides, another one shows with its next step.
    page.goto(f"{address}/pairs?run=newer&sort=z")
    first, decided = _ids_by_z(runs)[-1], len(read_decisions(open_run(runs / "newer")))
    expect(page.locator(".plc-id")).to_contain_text(first)
    other = page.context.browser.new_page(viewport={"width": 1366, "height": 768})
    other.set_default_timeout(LONGEST_MS)
    other.goto(f"{address}/pairs?run=newer&sort=z&decision=undecided")
    expect(other.locator(".plc-id")).to_contain_text(first)
    page.keyboard.press("k")
    expect(page.get_by_text(f"{decided + 1} of 200 decided")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="saving")).to_have_count(0)
    settled(page)
    settled(other)
    before = len(pd.read_parquet(runs / "newer" / "pairs.parquet")) - decided
    expect(other.get_by_text(f"{before} of 200 pairs").first).to_be_visible()
    other.keyboard.press("ArrowRight")
    expect(other.get_by_text(f"{before - 1} of 200 pairs").first).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".plc-id")).to_contain_text(first)
    page.keyboard.press("k")
    expect(page.get_by_role("button", name="keep")).to_have_attribute("aria-pressed", "false")
    expect(page.get_by_text(f"{decided} of 200 decided")).to_be_visible()

    # A run that is deleted while a pair of it is on the screen.
    path = write_fake_run(runs, "goes", seed=5)
    page.goto(f"{address}/pairs?run=goes")
    expect(page.locator(".plc-id")).to_be_visible()
    settled(page)
    page.wait_for_timeout(500)
    shutil.rmtree(path)
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("There is no run folder").first).to_be_visible()
    expect(page.get_by_test_id("stException")).to_have_count(0)


def test_keys_typed_quickly_fall_on_the_pairs_that_were_shown(
    address: str, runs: Path, page: Any
) -> None:
    from playwright.sync_api import expect

    path = write_fake_run(runs, "quick", pairs=KEYS + 20, seed=6)
    page.goto(f"{address}/pairs?run=quick&sort=pair_id&rising=1")
    expect(page.locator(".plc-id")).to_be_visible()
    # What stood on the screen when each key was pressed, seen before the page itself hears of it.
    page.evaluate(
        """() => {
            window.typed = [];
            window.addEventListener('keydown', (event) => {
                const shown = document.querySelector('.plc-id');
                window.typed.push([event.key, shown?.textContent ?? null]);
            }, true);
        }"""
    )
    decisions = {"k": "keep", "f": "flip", "t": "tie", "d": "drop"}
    keys = random.Random(0).choices("kftd", k=KEYS)
    for key in keys:
        page.keyboard.press(key)
        page.wait_for_timeout(KEYS_MS)
    expect(page.get_by_text(f"{KEYS} of {KEYS + 20} decided")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="saving")).to_have_count(0)
    expect(page.get_by_role("status").filter(has_text="wait")).to_have_count(0)
    ids = sorted(pd.read_parquet(path / "pairs.parquet")["pair_id"])
    expect(page.locator(".plc-id")).to_have_text(ids[KEYS])
    made = read_decisions(open_run(path))
    assert {i: made[i].decision for i in made} == {
        i: decisions[key] for i, key in zip(ids, keys, strict=False)
    }
    typed = page.evaluate("window.typed")
    assert [key for key, _ in typed] == keys
    # A key either fell on the pair on the screen, or no pair stood there and it waited.
    assert [i for i, (_, there) in zip(ids, typed, strict=False) if there not in (i, None)] == []

    # Undo goes back over all of it, one key a decision, and Undo of nothing is not offered.
    for _ in range(3):
        page.keyboard.press("u")
    expect(page.locator(".plc-id")).to_have_text(ids[KEYS - 3])
    expect(page.get_by_text(f"{KEYS - 3} of {KEYS + 20} decided")).to_be_visible()
    assert set(read_decisions(open_run(path))) == set(ids[: KEYS - 3])


FAINT = r"""() => {
  const parts = (colour) => {
    const [red, green, blue, whole] = colour.match(/[\d.]+/g).map(Number);
    return [red, green, blue, whole ?? 1];
  };
  const over = (top, ground) => [0, 1, 2].map((i) => top[i] * top[3] + ground[i] * (1 - top[3]));
  const light = (colour) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const above = (element) => element ? [...above(element.parentElement), element] : [];
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement, style = getComputedStyle(element);
    const box = element.getBoundingClientRect(), svg = element.closest("svg");
    if (!texts.currentNode.data.trim() || /STYLE|SCRIPT/.test(element.tagName)) continue;
    if (!box.width || style.visibility === "hidden" || element.closest(":disabled")) continue;
    const around = above(svg ? svg.parentElement : element);
    const grounds = around.map((e) => parts(getComputedStyle(e).backgroundColor));
    const ground = grounds.reduce((below, own) => over(own, below), [255, 255, 255]);
    const colour = parts(svg ? style.fill : style.color);
    colour[3] *= above(element).reduce((o, e) => o * getComputedStyle(e).opacity, 1);
    if (colour[3] < 0.05) continue;
    const [dark, bright] = [light(over(colour, ground)), light(ground)].sort((a, b) => a - b);
    const ratio = (bright + 0.05) / (dark + 0.05);
    if (ratio < 4.5) found.push([texts.currentNode.data.trim(), ratio]);
  }
  return found;
}"""
"""Texts whose contrast to the ground behind them is below 4.5:1."""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_stand_out_from_their_ground(address: str, page: Any, theme: str) -> None:
    from playwright.sync_api import expect

    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": 1366, "height": 2400})
    for path in ("?", "runs?run=newer&run=older&", "routing?", "pairs?", "ties?", "tests?"):
        page.goto(f"{address}/{path}run=newer")
        expect(page.get_by_test_id("stApp")).to_have_attribute(
            "data-test-script-state", "notRunning"
        )
        if path != "?":
            expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
        page.wait_for_timeout(1000)
        assert page.evaluate("document.querySelectorAll('p').length") > 5
        assert page.evaluate(FAINT) == [], path


def test_nothing_is_asked_for_from_outside(address: str, page: Any) -> None:
    from playwright.sync_api import expect

    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path in ("", "routing", "pairs", "wins"):
        page.goto(f"{address}/{path}")
        expect(page.get_by_test_id("stApp")).to_have_attribute(
            "data-test-script-state", "notRunning"
        )
        page.wait_for_timeout(500)
    assert asked
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


# Whether the second chart of a pair marks it at a value.
MARKED_AT = """(value) => {
    const plot = document.querySelectorAll(".st-key-pair_charts .js-plotly-plot")[1];
    const marked = plot?.data?.find(trace => trace.name === "this pair");
    return Math.abs((marked?.x?.[0] ?? Infinity) - value) < 1e-4;
}"""


def test_the_charts_of_a_pair_are_drawn_while_they_are_in_view(
    address: str, runs: Path, page: Any
) -> None:
    from playwright.sync_api import expect

    charts = page.locator(".st-key-pair_charts .js-plotly-plot")
    heading = page.get_by_text("Over training")
    page.goto(f"{address}/pairs?run=newer&sort=z")
    highest = _ids_by_z(runs)[::-1]
    expect(page.locator(".plc-id")).to_contain_text(highest[0])
    expect(heading).to_be_visible()
    expect(charts).to_have_count(0)  # a laptop's screen ends above them
    page.keyboard.press("ArrowRight")
    expect(page.locator(".plc-id")).to_contain_text(highest[1])
    page.locator(".st-key-pair_charts").scroll_into_view_if_needed()
    expect(charts).to_have_count(2)
    last = open_run(runs / "newer").visits().query(f"pair_id == '{highest[1]}'")["z"].iloc[-1]
    # Plotly draws a chart in steps, and the page may draw it anew: what counts is what stays.
    page.wait_for_function(MARKED_AT, arg=float(last))
    page.keyboard.press("ArrowRight")
    expect(page.locator(".plc-id")).to_contain_text(highest[2])
    expect(charts).to_have_count(2)
    page.get_by_role("heading", name="Pairs").scroll_into_view_if_needed()
    expect(charts).to_have_count(0)


def test_how_charts_are_saved_is_asked_only_beside_charts(address: str, page: Any) -> None:
    from playwright.sync_api import expect

    asked = page.get_by_text("Save charts as")
    for path, charts in (("human_disagreement", 0), ("routing", 6)):
        page.goto(f"{address}/{path}?run=newer")
        expect(asked).to_be_attached()  # the last of a page
        expect(page.get_by_test_id("stPlotlyChart")).to_have_count(charts)
        expect(asked).to_be_visible(visible=charts > 0)


@pytest.mark.parametrize("width", [700, 1366])
def test_the_pairs_fit_the_screen(address: str, page: Any, width: int) -> None:
    from playwright.sync_api import expect

    page.set_viewport_size({"width": width, "height": 768})
    page.goto(f"{address}/pairs?run=newer")
    expect(page.locator(".plc-text").nth(2)).to_be_visible()
    page.wait_for_timeout(500)
    controls = page.locator(".st-key-toolbar > *, .st-key-order > *").all()
    boxes = [box for control in controls if (box := control.bounding_box())]
    assert len(boxes) >= 8
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
    for number, one in enumerate(boxes):
        for other in boxes[number + 1 :]:
            beside = one["x"] + one["width"] <= other["x"] + 1 or other["x"] + other["width"] <= (
                one["x"] + 1
            )
            above = one["y"] + one["height"] <= other["y"] + 1
            assert beside or above
    if width == 1366:
        # Prompt and both answers stand on a laptop's screen without scrolling.
        for answer in (1, 2):
            box = page.locator(".plc-text").nth(answer).bounding_box()
            assert box is not None
            assert box["y"] < 550


def _click_a_point(page: Any, chart: int) -> str:
    """Click a point in the middle of the chart; the id of its pair."""
    plot = page.locator(".js-plotly-plot").nth(chart)

    def click() -> None:
        plot.scroll_into_view_if_needed()
        page.wait_for_timeout(500)
        place = plot.evaluate(
            """(plot) => {
                plot.on('plotly_click', event => {
                    window.clicked = event.points[0].customdata[0];
                });
                const trace = plot._fullData.find(trace => trace.customdata);
                const {xaxis, yaxis} = plot._fullLayout, box = plot.getBoundingClientRect();
                const point = Math.floor(trace.x.length / 2);
                return {x: box.x + xaxis._offset + xaxis.d2p(trace.x[point]),
                        y: box.y + yaxis._offset + yaxis.d2p(trace.y[point])};
            }"""
        )
        page.mouse.move(place["x"], place["y"])
        page.wait_for_timeout(500)
        page.mouse.click(place["x"], place["y"])

    was_clicked = "window.clicked !== undefined"
    _until(click, lambda ms: page.wait_for_function(was_clicked, timeout=ms))
    return str(page.evaluate("window.clicked"))


def _until(act: Callable[[], None], shown: Callable[[float], Any], tries: int = 5) -> None:
    """Act until its outcome is shown: a page that is being drawn takes no clicks, and says nothing.

    `shown` waits for a number of milliseconds and raises where the outcome did not come.
    """
    from playwright.sync_api import TimeoutError as NotInTime

    for _ in range(tries - 1):
        act()
        try:
            shown(20_000)
            return
        except (AssertionError, NotInTime):
            continue
    act()
    shown(LONGEST_MS)


def _ids_by_z(runs: Path) -> list[str]:
    """The pairs from the lowest z at their last visit."""
    visits = pd.concat(map(pd.read_parquet, sorted((runs / "newer" / "visits").iterdir())))
    last = visits.drop_duplicates("pair_id", keep="last").sort_values("z")
    return last["pair_id"].tolist()

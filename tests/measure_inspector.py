"""Time the inspector on a huge run, in Chromium: `python -m tests.measure_inspector FOLDER`.

FOLDER is where `python -m tests.huge_run FOLDER` wrote the run "huge". Times are from the action
until the script has ended and the page shows it; beside them stand the server's CPU seconds, which
other work on the machine does not lengthen, and its resident memory.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import expect, sync_playwright

from tests.browser import CHROMIUM_FLAGS, chromium, inspector

REPEATS = 3


def main() -> None:
    """Print a line a measurement: median of some repeats, and the memory after it."""
    parser = argparse.ArgumentParser(description="Time the inspector on a huge run.")
    parser.add_argument("runs", type=Path)
    parser.add_argument("--run", default="huge")
    parser.add_argument("--pairs", type=int, default=1_000_000, help="how many the run has")
    parser.add_argument("--words", default="ed", help="what is searched for in its texts")
    options = parser.parse_args()
    expect.set_options(timeout=60_000)
    with (
        sync_playwright() as playwright,
        tempfile.TemporaryDirectory() as cache,
        inspector(options.runs, PLC_CACHE=cache) as address,
    ):
        server = _server(address)
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1366, "height": 768})

        def settled() -> None:
            app = page.get_by_test_id("stApp")
            expect(app).to_have_attribute("data-test-script-state", "notRunning")

        def report(name: str, act: Callable[[int], Any], repeats: int = REPEATS) -> None:
            times, work = [], []
            for number in range(repeats):
                started, before = time.perf_counter(), sum(server.cpu_times()[:2])
                act(number)
                settled()
                times.append(time.perf_counter() - started)
                work.append(sum(server.cpu_times()[:2]) - before)
            seconds, cpu = (sorted(values)[repeats // 2] for values in (times, work))
            memory = server.memory_info().rss / 1e6
            print(f"{name:<44}{seconds:6.2f} s   server {cpu:5.2f} CPU s   {memory:5.0f} MB")  # noqa: T201

        def choose(label: str, options: list[str], number: int) -> None:
            page.get_by_role("combobox", name=label).click()
            page.get_by_role("option", name=options[number % len(options)], exact=True).click()
            page.wait_for_timeout(50)

        def shown(url: str, text: str) -> None:
            page.goto(f"{address}{url}")
            expect(page.get_by_text(text).first).to_be_visible()

        report(
            "runs, first page of a new server", lambda _: shown(f"/?run={options.run}", "Curves"), 1
        )
        report("runs", lambda _: shown(f"/?run={options.run}", "Curves"))
        report(
            "routing, its visits not read yet: what is known",
            lambda _: shown(f"/routing?run={options.run}", "It does not say"),
            1,
        )
        report(
            "... until all of it is there by itself",
            lambda _: expect(page.get_by_text("Correction by phase")).to_be_visible(),
            1,
        )
        report("routing", lambda _: shown(f"/routing?run={options.run}", "Correction by phase"))
        report("pairs", lambda _: shown(f"/pairs?run={options.run}", "Where it stands"))
        report("a filter", lambda n: choose("Label", ["swapped", "not swapped"], n))
        report("a sort", lambda n: choose("Sort by", ["z", "margin", "q_tie"], n))

        def next_pair(_: int) -> None:
            shown_now = page.locator(".plc-id").inner_text()
            page.keyboard.press("ArrowRight")
            expect(page.locator(".plc-id")).not_to_have_text(shown_now)

        page.get_by_role("heading", name="Pairs").click()  # keys are not for a box of choices now
        report("the next pair", next_pair)
        page.goto(f"{address}/pairs?run={options.run}")
        expect(page.get_by_text("Where it stands").first).to_be_visible()
        settled()
        searching = page.get_by_text("found so far")
        before = page.get_by_text(f"{options.pairs:,} of {options.pairs:,} pairs")

        def first_found(_: int) -> None:
            page.get_by_role("textbox", name="Search in texts").fill(options.words)
            page.keyboard.press("Enter")
            expect(before).to_have_count(0)

        report("a search: the first pairs", first_found, 1)
        report("... until all are counted", lambda _: expect(searching).to_have_count(0), 1)
        browser.close()


def _server(address: str) -> psutil.Process:
    port = int(address.rpartition(":")[2])
    for connection in psutil.net_connections("tcp4"):
        if connection.laddr.port == port and connection.status == "LISTEN" and connection.pid:
            return psutil.Process(connection.pid)
    raise SystemExit(f"No server listens at {address}.")


if __name__ == "__main__":
    main()

"""Time the inspector on a huge run, in Chromium: `python -m tests.measure_inspector FOLDER`.

FOLDER is where `python -m tests.huge_run FOLDER` wrote the run "huge". Times are from the click or
key until the script has ended, the page shows it and a frame is drawn after that; beside them stand
the CPU seconds of server and browser, which other work on the machine lengthens less, and the
server's resident memory; last, the largest of the process that reads the visits.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import expect, sync_playwright

from tests.browser import CHROMIUM_FLAGS, chromium, inspector

REPEATS = 5
LONGEST_MS = 600_000
"""A machine with much else on it takes its time, and is measured too."""
SETTLED = (
    "() => document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'"
)
DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
SAID = ".st-key-split [data-testid=stCaptionContainer]"
"""How many pairs the list has, and in which order."""
CHANGED = "([where, before]) => document.querySelector(where).innerText !== before"


def main() -> None:
    """Print a line a measurement: median of some repeats, and the memory after it."""
    parser = argparse.ArgumentParser(description="Time the inspector on a huge run.")
    parser.add_argument("runs", type=Path)
    parser.add_argument("--run", default="huge")
    parser.add_argument("--pairs", type=int, default=1_000_000, help="how many the run has")
    parser.add_argument("--words", default="ed", help="what is searched for in its texts")
    options = parser.parse_args()
    expect.set_options(timeout=LONGEST_MS)
    with (
        sync_playwright() as playwright,
        tempfile.TemporaryDirectory() as cache,
        inspector(options.runs, PLC_CACHE=cache) as address,
    ):
        server = _server(address)
        reader = Peak(server)
        reader.start()
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1366, "height": 768})
        page.set_default_timeout(LONGEST_MS)

        def settled() -> None:
            # Asked at every frame: `expect` asks ever more seldom, up to a second apart.
            page.wait_for_function(SETTLED)
            page.evaluate(DRAWN)

        def report(
            name: str,
            act: Callable[[int], Any],
            repeats: int = REPEATS,
            before: Callable[[int], Any] = lambda number: None,
        ) -> None:
            times, work, drawing = [], [], []
            for number in range(repeats):
                before(number)
                page.wait_for_timeout(300)
                started, used, drew = time.perf_counter(), _cpu(server), _cpu(*_chromium())
                act(number)
                settled()
                times.append(time.perf_counter() - started)
                work.append(_cpu(server) - used)
                drawing.append(_cpu(*_chromium()) - drew)
            seconds, cpu, drew = (sorted(values)[repeats // 2] for values in (times, work, drawing))
            memory = server.memory_info().rss / 1e6
            print(  # noqa: T201
                f"{name:<48}{seconds:6.2f} s   CPU s: server {cpu:5.2f}, browser {drew:5.2f}"
                f"   {memory:5.0f} MB",
                flush=True,
            )

        def chooser(label: str, options: list[str]) -> dict[str, Callable[[int], Any]]:
            """Open a box of choices, and then click one of them."""

            def choose(number: int) -> None:
                said = page.locator(SAID).first.inner_text()
                option = options[number % len(options)]
                page.get_by_role("option", name=option, exact=True).click()
                page.wait_for_function(CHANGED, arg=[SAID, said])

            return {
                "before": lambda number: page.get_by_role("combobox", name=label).click(),
                "act": choose,
            }

        def shown(url: str, text: str) -> None:
            page.goto(f"{address}{url}")
            expect(page.get_by_text(text).first).to_be_visible()

        report(
            "verdict, first page of a new server",
            lambda _: shown(f"/?run={options.run}", "How noisy are the data?"),
            1,
        )
        report(
            "routing, its visits not read yet: what is known",
            lambda _: shown(f"/routing?run={options.run}", "for the first time"),
            1,
        )
        report(
            "... until all of it is there by itself",
            lambda _: expect(page.get_by_text("Correction by phase")).to_be_visible(),
            1,
        )
        report("runs", lambda _: shown(f"/runs?run={options.run}", "Curves"))
        report(
            "routing, by its address",
            lambda _: shown(f"/routing?run={options.run}", "Correction by phase"),
        )

        def on_verdict(_: int) -> None:
            shown(f"/?run={options.run}", "How noisy are the data?")
            settled()

        def to_routing(_: int) -> None:
            page.get_by_role("link", name="Routing").click()
            expect(page.get_by_text("Correction by phase")).to_be_visible()

        report("routing, by its tab", to_routing, before=on_verdict)
        report("pairs", lambda _: shown(f"/pairs?run={options.run}", "On the run's curves"))
        page.wait_for_timeout(2_000)  # by now the page knows that its charts are not in view
        report("a filter", **chooser("Label", ["swapped", "not swapped", "Any"]))
        report("a sort", **chooser("Sort by", ["z", "margin", "q_tie", "sd of z", "pair_id"]))

        def next_pair(_: int) -> None:
            shown_now = page.locator(".plc-id").inner_text()
            page.keyboard.press("ArrowRight")
            page.wait_for_function(CHANGED, arg=[".plc-id", shown_now])

        page.get_by_role("heading", name="Pairs").click()  # keys are not for a box of choices now
        report("the next pair", next_pair)
        page.goto(f"{address}/pairs?run={options.run}")
        expect(page.get_by_text("On the run's curves").first).to_be_visible()
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
    print(  # noqa: T201
        f"the process that reads the visits: at most {reader.most / 1e6:.0f} MB, "
        f"with the server beside it {reader.most_together / 1e6:.0f} MB; "
        f"the server alone at most {reader.most_alone / 1e6:.0f} MB"
    )


class Peak(threading.Thread):
    """The largest resident memory of a server and of its child, looked at while they live.

    Attributes:
        most, most_alone, most_together: bytes of the child, of the server, and of both at once.
    """

    def __init__(self, server: psutil.Process) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.most = self.most_alone = self.most_together = 0

    def run(self) -> None:
        """Look twenty times a second."""
        with contextlib.suppress(psutil.Error):
            while self.server.is_running():
                alone, child = self.server.memory_info().rss, 0
                with contextlib.suppress(psutil.Error):
                    child = sum(each.memory_info().rss for each in self.server.children())
                self.most, self.most_alone = max(self.most, child), max(self.most_alone, alone)
                self.most_together = max(self.most_together, alone + child)
                time.sleep(0.05)


def _cpu(*processes: psutil.Process) -> float:
    """CPU seconds of processes so far."""
    spent = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            spent += sum(process.cpu_times()[:2])
    return spent


def _chromium() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "chrom" in child.name()]


def _server(address: str) -> psutil.Process:
    port = int(address.rpartition(":")[2])
    for connection in psutil.net_connections("tcp4"):
        if connection.laddr.port == port and connection.status == "LISTEN" and connection.pid:
            return psutil.Process(connection.pid)
    raise SystemExit(f"No server listens at {address}.")


if __name__ == "__main__":
    main()

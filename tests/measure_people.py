"""Twenty people in the inspector at once: `python -m tests.measure_people FOLDER`.

FOLDER gets a run of 200,000 pairs where it has none. All act at the same moment, round after round.
First each is a session without a browser, as twenty people have twenty computers: timed is the
server alone, from the request until all of a page is sent. Then each is a page of one browser on
this machine, and every reaction is timed there: of a decision until the next pair stands there and
until it is saved, of a new order and of another page until it is drawn. Printed are the median, the
ninth of ten and the slowest, the server's CPU seconds and its memory.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import websockets
from playwright.sync_api import sync_playwright
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from plc_core.runs import open_run
from plc_core.runs.decisions import read_decisions
from tests.browser import CHROMIUM_FLAGS, chromium, inspector
from tests.huge_run import write_huge_run
from tests.measure_inspector import Peak, _server

_SETTLED = "document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'"
_SAVED = (
    "![...document.querySelectorAll('[role=status]')].some(e => e.textContent.includes('saving'))"
)
_ID = "document.querySelector('.plc-id')?.textContent"
_WATCH = """([what]) => {
  const begun = performance.now(), id = document.querySelector('.plc-id')?.textContent;
  window.took = null;
  const look = () => {
    if (eval(what)) { window.took = performance.now() - begun; } else requestAnimationFrame(look);
  };
  window.before = id;
  requestAnimationFrame(look);
}"""


def main() -> None:
    """Print a line an action."""
    parser = argparse.ArgumentParser(description="Many people in the inspector at once.")
    parser.add_argument("runs", type=Path)
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    path = options.runs / "huge"
    if not path.exists():
        write_huge_run(options.runs, "huge", pairs=options.pairs, epochs=3)
    with (
        tempfile.TemporaryDirectory() as cache,
        inspector(options.runs, PLC_CACHE=cache) as address,
    ):
        asyncio.run(_sessions(address, options.people))
    with (
        sync_playwright() as playwright,
        tempfile.TemporaryDirectory() as cache,
        inspector(options.runs, PLC_CACHE=cache) as address,
    ):
        server = _server(address)
        peak = Peak(server)
        peak.start()
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        pages = [browser.new_context().new_page() for _ in range(options.people)]
        for page in pages:
            page.set_default_timeout(600_000)

        def opened(url: Callable[[int], str], ready: str) -> list[float]:
            begun = time.perf_counter()
            for number, page in enumerate(pages):
                page.goto(f"{address}{url(number)}", wait_until="commit")
            took = []
            for page in pages:
                page.wait_for_function(f"() => {ready} && {_SETTLED}")
                took.append(time.perf_counter() - begun)
            return took

        def timed(what: str, act: Callable[[int, Any], None]) -> list[float]:
            for page in pages:
                page.evaluate(_WATCH, [what])
            for number, page in enumerate(pages):
                act(number, page)
            for page in pages:
                page.wait_for_function("() => window.took !== null")
            return [page.evaluate("window.took") / 1000 for page in pages]

        report = Report(server)
        report("the first page, of a new server", opened(lambda n: "/?run=huge", "true"))
        report("pairs, until one is there", opened(lambda n: "/pairs?run=huge", _ID))
        keys = "kftd"
        next_one, saved = [], []
        for _ in range(options.rounds):
            pressed = lambda n, page: page.keyboard.press(keys[n % 4])  # noqa: E731
            next_one += timed(f"{_ID} !== window.before", pressed)
            begun = time.perf_counter()
            for page in pages:
                page.wait_for_function(f"() => {_SAVED}")
                saved.append(time.perf_counter() - begun)
        report("a decision, until the next pair is there", next_one)
        report("... until it is saved, beyond that", saved)
        sorts = ("z", "margin", "q_tie", "q_flip", "pair_id")
        for round_ in range(2):
            url = lambda n, r=round_: f"/pairs?run=huge&sort={sorts[(n + r) % 5]}&rising={r}"  # noqa: E731
            report("another order, by a link", opened(url, _ID))
        report("the page of routing", opened(lambda n: "/routing?run=huge", "true"))
        report("the page of ties", opened(lambda n: "/ties?run=huge", "true"))
        browser.close()
    held = read_decisions(open_run(path))
    print(  # noqa: T201
        f"{options.people} people; the server at most {peak.most_alone / 1e6:.0f} MB, the process "
        f"that reads visits {peak.most / 1e6:.0f} MB; {len(held):,} pairs decided on"
    )


class Report:
    """Prints a line an action, with what the server spent since the line before."""

    def __init__(self, server: psutil.Process) -> None:
        self.server, self.spent = server, 0.0

    def __call__(self, name: str, seconds: list[float]) -> None:
        ranked = sorted(seconds)
        median, late = ranked[len(ranked) // 2], ranked[int(0.9 * (len(ranked) - 1))]
        spent = sum(self.server.cpu_times()[:2])
        print(  # noqa: T201
            f"{name:<44}median {median:6.2f} s   9 of 10 {late:6.2f} s   slowest "
            f"{ranked[-1]:6.2f} s   server {spent - self.spent:5.2f} CPU s, "
            f"{self.server.memory_info().rss / 1e6:4.0f} MB",
            flush=True,
        )
        self.spent = spent


class Session:
    """What a browser asks of Streamlit's server, without drawing it."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self.socket, self.last = socket, BackMsg()

    async def opened(self, page: str, query: str, sign: str) -> float:
        """Seconds until a message with the words `sign` has come, and the whole page with it."""
        begun, seen = time.perf_counter(), False
        self.last = BackMsg()
        self.last.rerun_script.page_name, self.last.rerun_script.query_string = page, query
        await self.socket.send(self.last.SerializeToString())
        timers: list[asyncio.Task[None]] = []
        while True:
            raw = await self.socket.recv(decode=False)
            seen |= sign.encode() in raw
            message = ForwardMsg.FromString(raw)
            kind = message.WhichOneof("type")
            if kind == "navigation":
                self.last.rerun_script.page_script_hash = message.navigation.page_script_hash
            elif kind == "auto_rerun":
                again = message.auto_rerun
                timers += [asyncio.create_task(self._again(again.interval, again.fragment_id))]
            elif kind == "script_finished" and seen and not message.script_finished:
                for timer in timers:
                    timer.cancel()
                return time.perf_counter() - begun

    async def _again(self, seconds: float, fragment: str) -> None:
        ask = BackMsg()
        while True:
            await asyncio.sleep(seconds)
            ask.CopyFrom(self.last)
            ask.rerun_script.fragment_id, ask.rerun_script.is_auto_rerun = fragment, True
            await self.socket.send(ask.SerializeToString())


async def _sessions(address: str, people: int) -> None:
    report = Report(_server(address))
    url = f"{address.replace('http', 'ws')}/_stcore/stream"
    kinds: dict[str, Any] = {"subprotocols": ["streamlit"], "max_size": None}
    sessions = [Session(await websockets.connect(url, **kinds)) for _ in range(people)]
    sorts = ("z", "margin", "q_tie", "q_flip", "pair_id")
    for name, page, query, sign in (
        ("runs, of a new server", "runs", "", "Curves"),
        ("pairs, opened for the first time", "pairs", "", "plc-id"),
        ("pairs", "pairs", "", "plc-id"),
        ("another order, by a link", "pairs", "&sort={}", "plc-id"),
        ("routing, for the first time", "routing", "", "Correction by phase"),
        ("routing", "routing", "", "Correction by phase"),
        ("ties, for the first time", "ties", "", "Healthy"),
    ):
        asked = [f"run=huge{query.format(sorts[n % 5])}" for n in range(people)]
        waits = [s.opened(page, q, sign) for s, q in zip(sessions, asked, strict=True)]
        report(f"the server alone: {name}", await asyncio.gather(*waits))
    for session in sessions:
        await session.socket.close()


if __name__ == "__main__":
    main()

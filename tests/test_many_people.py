"""Several people at one run: no decision is lost, the last one on a pair holds."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from plc_core.runs import open_run
from plc_core.runs.decisions import decide, read_decisions, undo
from tests.browser import CHROMIUM_FLAGS, chromium, inspector
from tests.fake_run import write_fake_run
from tests.paths import ROOT

LONGEST_MS = 300_000
PEOPLE, EACH = 20, 15

ONE_PERSON = """
import sys
from plc_core.storage.files import RunError
from plc_core.runs import open_run
from plc_core.runs import decisions
def decide(*words):
    while True:  # where the others are too many, it is said and not done
        try:
            return decisions.decide(*words)
        except RunError as error:
            assert "Try again" in str(error)
run, person, each = open_run(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
shared, *ids = run.pairs(["pair_id"])["pair_id"].tolist()
for number in range(each):
    pair = ids[person * each + number]
    decide(run, pair, ("keep", "flip", "tie", "drop")[number % 4], "")
    decide(run, shared, ("keep", "flip")[(person + number) % 2], f"{person}-{number}")
"""


def ids_of(path: Path) -> list[str]:
    return list(open_run(path).pairs(["pair_id"])["pair_id"])


def lines_of(path: Path) -> list[dict[str, Any]]:
    text = (path / "decisions" / "decisions.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_twenty_processes_that_decide_at_once_lose_nothing(tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "shared", pairs=1 + PEOPLE * EACH)
    shared = ids_of(path)[0]
    words = [sys.executable, "-c", ONE_PERSON, str(path)]
    people = [subprocess.Popen([*words, str(n), str(EACH)], cwd=ROOT) for n in range(PEOPLE)]
    assert [person.wait() for person in people] == [0] * PEOPLE
    lines = lines_of(path)
    own = [line for line in lines if line["pair_id"] != shared]
    assert len(own) == PEOPLE * EACH == len({line["pair_id"] for line in own})
    notes = [line["note"] for line in lines if line["pair_id"] == shared]
    assert len(notes) == len(set(notes)) == PEOPLE * EACH
    found = read_decisions(open_run(path))
    assert found[shared].note == notes[-1]
    assert len(found) == PEOPLE * EACH + 1


def test_threads_of_one_server_lose_nothing_and_undo_takes_back_each(tmp_path: Path) -> None:
    run = open_run(write_fake_run(tmp_path, "shared", pairs=20))
    jobs = [(pair, number) for number in range(EACH) for pair in ids_of(run.path)[:PEOPLE]]
    with ThreadPoolExecutor(PEOPLE) as pool:
        kinds = ("keep", "flip", "tie", "drop")
        list(pool.map(lambda job: decide(run, job[0], kinds[job[1] % 4], str(job[1])), jobs))
    assert len(lines_of(run.path)) == len(jobs)
    for _ in jobs:
        assert undo(run) is not None
    assert undo(run) is None
    assert read_decisions(run) == {}


@pytest.fixture
def pages() -> Iterator[list[Any]]:
    """Two people, each with a browser context of their own."""
    sync_api = pytest.importorskip("playwright.sync_api")
    sync_api.expect.set_options(timeout=LONGEST_MS)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        found = [browser.new_context().new_page() for _ in range(2)]
        for page in found:
            page.set_default_timeout(LONGEST_MS)
        yield found
        browser.close()


def test_two_who_decide_on_one_pair_both_stand_in_the_file(
    tmp_path: Path, pages: list[Any]
) -> None:
    from playwright.sync_api import expect

    path = write_fake_run(tmp_path, "shared", pairs=40)
    ids = sorted(ids_of(path))
    with inspector(tmp_path) as address:
        for page in pages:
            page.goto(f"{address}/pairs?run=shared&sort=pair_id&rising=1")
            expect(page.locator(".plc-id")).to_have_text(ids[0])
            expect(page.get_by_test_id("stApp")).to_have_attribute(
                "data-test-script-state", "notRunning"
            )
        one, other = pages
        for step in range(8):
            one.keyboard.press("k")
            other.keyboard.press("f")
            for page in pages:
                expect(page.locator(".plc-id")).to_have_text(ids[step + 1])
        for page in pages:
            expect(page.get_by_role("status").filter(has_text="saving")).to_have_count(0)
        lines = lines_of(path)
        for pair in ids[:8]:
            made = [line["decision"] for line in lines if line["pair_id"] == pair]
            assert sorted(made) == ["flip", "keep"], made
        held = {
            pair: decision.decision for pair, decision in read_decisions(open_run(path)).items()
        }
        last = {line["pair_id"]: line["decision"] for line in lines}
        assert held == last
        # Who comes back to a pair sees what holds, whoever decided it.
        for page in pages:
            page.keyboard.press("ArrowLeft")
            expect(page.locator(".plc-id")).to_have_text(ids[7])
            expect(page.get_by_role("button", name=held[ids[7]], exact=True)).to_have_attribute(
                "aria-pressed", "true"
            )

"""The keys of a blind check in a real browser, and a click into the list of audited pairs."""

import json
import random

import pandas as pd
from playwright.sync_api import sync_playwright

from plc_core.label_audit.blind_check import BlindCheck
from tests.browser import CHROMIUM_FLAGS, chromium, inspector
from tests.test_label_audit_page import made, root

__all__ = ["made", "root"]  # fixtures

READ_MS, KEYS_MS = 400, 350
"""How long a pair is looked at, by who waits and by who is quick."""


def test_one_key_is_one_verdict_on_the_pair_that_was_read(root) -> None:
    check = BlindCheck(root / "audited")
    with sync_playwright() as playwright, inspector(root) as address:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1366, "height": 1600})
        page.set_default_timeout(120_000)
        page.goto(f"{address}/label_audit")
        page.get_by_role("textbox", name="Who judges").fill("Ada 12")
        page.get_by_role("button", name="Check 50 pairs blind").click()
        page.get_by_text("Ada 12 · 0 of 50").wait_for()
        page.wait_for_timeout(READ_MS)
        for key in "2110":  # faster than anybody reads: only the first is meant
            page.keyboard.press(key)
        page.get_by_text("Ada 12 · 1 of 50").wait_for()
        page.get_by_text("was not counted").wait_for()
        page.wait_for_timeout(READ_MS)
        page.keyboard.press("0")
        page.get_by_text("Ada 12 · 2 of 50").wait_for()
        page.wait_for_timeout(READ_MS)
        page.keyboard.press("u")
        page.get_by_text("Ada 12 · 1 of 50").wait_for()
        page.wait_for_timeout(READ_MS)
        page.get_by_role("button", name="Answer 1 is better").click()
        page.get_by_text("Ada 12 · 2 of 50").wait_for()
        saved(page)
        shown = [pair.pair_id for pair in check.shown()[:2]]
        found = check.verdicts()
        assert found["pair_id"].tolist() == shown and found["verdict"].tolist() == ["right", "left"]
        lines = (check.folder / "verdicts.jsonl").read_text().splitlines()
        assert [json.loads(line)["verdict"] for line in lines] == ["right", "neither", None, "left"]
        page.get_by_role("button", name="Back to the audit").click()
        table = page.locator(".st-key-audit_table")
        table.wait_for()
        page.locator(".plc-id").wait_for()
        before = page.locator(".plc-id").inner_text()
        table.click(position={"x": 150, "y": 100})
        page.wait_for_url("**pair=**")
        page.wait_for_function(
            "id => (document.querySelector('.plc-id')?.innerText ?? id) != id", arg=before
        )
        browser.close()


def test_whoever_judges_quickly_loses_no_key(root) -> None:
    """Each key on the pair that was on the screen, though the server is slower than the keys."""
    check = BlindCheck(root / "audited")
    keys = random.Random(0).choices("120", k=50)
    with sync_playwright() as playwright, inspector(root) as address:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1366, "height": 768})
        page.set_default_timeout(120_000)
        page.goto(f"{address}/label_audit")
        page.get_by_role("textbox", name="Who judges").fill("Ada")
        page.get_by_role("button", name="Check 50 pairs blind").click()
        page.get_by_text("Ada · 0 of 50").wait_for()
        seen = []
        for key in keys:
            page.wait_for_timeout(KEYS_MS)
            seen.append(page.locator(".plc-prompt .plc-text").inner_text())
            page.keyboard.press(key)
        page.get_by_text("Ada · 50 of 50").wait_for()
        saved(page)
        browser.close()
    prompts = pd.read_parquet(root / "audited" / "pairs.parquet").set_index("pair_id")["prompt"]
    shown = [pair.pair_id for pair in check.shown()]
    assert seen == [prompts[pair][-1]["content"] for pair in shown]
    verdicts = check.verdicts().set_index("pair_id")["verdict"]
    means = {"1": "left", "2": "right", "0": "neither"}
    assert [verdicts[pair] for pair in shown] == [means[key] for key in keys]


def saved(page) -> None:
    """Wait until all that was pressed is on disk."""
    page.wait_for_function("() => !document.querySelector('[data-at=saving]').textContent")

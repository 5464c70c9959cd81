"""Texts that are markup, script, TeX or formulas are shown as they are: in a real browser."""

import csv
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import plc_core
from plc_core.batch import run_notebook
from plc_core.data import load_pairs
from plc_core.data.rules import FINDINGS
from plc_core.label_audit.folder import KIND, save_audit
from plc_core.runs import create_run, open_run
from plc_core.runs.cleaned import export_cleaned
from plc_core.runs.decisions import decide
from plc_core.storage.files import write_json, write_table
from tests.browser import CHROMIUM_FLAGS, chromium, inspector
from tests.fake_run import change_json, write_fake_answers, write_fake_run
from tests.measure_inspector import DRAWN, SETTLED
from tests.paths import ROOT
from tests.tiny_tokenizers import qwen

sys.path.insert(0, str(ROOT / "app"))

AUDIT = "audited"
IMAGE = '<img src=x onerror="window.owned=1">'
PAYLOADS = (
    IMAGE,
    "<script>window.owned=1</script>",
    "<svg onload=window.owned=1><a href=javascript:window.owned=1>x</a>",
    '"><iframe srcdoc="<script>parent.owned=1</script>">',
    "$\\frac{a}{b}$ and $$x^2$$ \\(y\\)",
    "**bold** _low_ `code` :red[no] :material/home: [l](javascript:window.owned=1)",
    "![i](x) # head ~~gone~~ <u>u</u> | a | b |",
    "&lt;b&gt; &amp; &#60;i&#62;",
    "{{7*7}} ${7*7} <%= 7*7 %> %{x} %{customdata[0]}",
    "=1+1",
    "@SUM(A1:A9)",
    "+cmd|' /C calc'!A0",
    "-2+3",
    "\t=1+1",
    "</pre></textarea></style></title><script>window.owned=1</script>",
    "<!-- comment --> <?php ?> <![CDATA[x]]>",
)
PAGES = ("", "routing", "pairs", "ties", "human_disagreement", "corruption", "tests", "wins",
         "label_audit")  # fmt: skip
FOREIGN = "document.querySelectorAll('[onerror], [onload], [srcdoc], img[src=x], b.x').length"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose texts, sources, settings, notes and answers are payloads, and a broken folder."""
    root = tmp_path_factory.mktemp("runs")
    texts = tuple(zip(PAYLOADS, [*PAYLOADS[1:], PAYLOADS[0]], strict=True))
    path = write_fake_run(
        root, "odd=1+1", seed=3, pairs=120, texts=texts, sources=PAYLOADS[:6], votes=True, ties=9
    )
    pairs = pd.read_parquet(path / "pairs.parquet")
    write_fake_run(root, "plain", seed=4)
    _plant_prompts(path, len(PAYLOADS))
    found = [
        {"rule": "prefix", "action": "keep", "file": IMAGE, "row": number, "pair_id": pair}
        | {"reason": payload}
        for number, (payload, pair) in enumerate(zip(PAYLOADS, pairs["pair_id"], strict=False))
    ]
    write_table(path / "findings.parquet", pa.Table.from_pylist(found, schema=FINDINGS))
    write_fake_answers(path)
    _plant_answers(path)
    info = json.loads((path / "run.json").read_text())
    change_json(
        path / "run.json",
        config=info["config"]
        | {"model": IMAGE, "data": PAYLOADS[1], "data_columns": {"prompt": IMAGE}},
        data=info["data"] | {"source": IMAGE},
        alerts=[IMAGE, PAYLOADS[5]],
    )
    change_json(path / "status.json", alerts=[IMAGE])
    for number, payload in enumerate(PAYLOADS):
        decide(open_run(path), pairs["pair_id"][number], "keep", payload)
    broken = root / IMAGE
    broken.mkdir()
    write_json(broken / "run.json", {"schema": IMAGE})
    failed = write_fake_run(root, "failed", seed=5, state="failed")
    change_json(failed / "status.json", reason=f"ValueError: {IMAGE} $x$ **b**")
    _audit(root)
    return root


def _audit(root: Path) -> None:
    """A label audit of pairs whose texts and sources are payloads, seven times over."""
    rows = [
        {"prompt": f"{payload} {n}", "chosen": f"{payload} good", "rejected": f"{payload} bad",
         "source": PAYLOADS[n % 3]}
        for n, payload in enumerate(PAYLOADS * 7)
    ]  # fmt: skip
    file = root / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    run = create_run(root, AUDIT, {"kind": KIND, "config": {"data": IMAGE}})
    with run.running("auditing"):
        save_audit(plc_core.audit(load_pairs(file), evidence=["lengths", "words"]), run)


def _plant_prompts(path: Path, count: int) -> None:
    table = pq.read_table(path / "pairs.parquet")
    prompts = table["prompt"].to_pylist()
    for number in range(count):
        prompts[number] = [
            {"role": IMAGE, "content": PAYLOADS[number]},
            {"role": "user", "content": PAYLOADS[number]},
        ]
    column = table.schema.get_field_index("prompt")
    table = table.set_column(column, "prompt", pa.array(prompts, table.schema.field("prompt").type))
    metadata = pa.array([json.dumps({IMAGE: PAYLOADS[0], "=1+1": "=1+1"})] * len(table))
    column = table.schema.get_field_index("metadata")
    write_table(path / "pairs.parquet", table.set_column(column, "metadata", metadata))


def _plant_answers(path: Path) -> None:
    file = path / "generations" / "world.parquet"
    answers = pd.read_parquet(file)
    odd = [PAYLOADS[number % len(PAYLOADS)] for number in range(len(answers))]
    write_table(file, pa.Table.from_pandas(answers.assign(response=odd, prompt=odd)))
    for kind in ("generations/world", "judgements/gold-world"):
        table = pd.read_parquet(path / f"{kind}.parquet")
        table["decoding"] = table["decoding"].replace("sampled", IMAGE)
        write_table(path / f"{kind}.parquet", pa.Table.from_pandas(table))


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    chromium()
    with inspector(runs) as url:
        yield url


@pytest.fixture
def page() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1366, "height": 900})
        page.set_default_timeout(0)  # pytest's own limit ends what hangs
        yield page
        browser.close()


def settled(page: Any, sign: str = "h1") -> None:
    """Wait until `sign` stands there, the page's script has ended, and a frame is drawn."""
    page.locator(sign).first.wait_for()
    page.wait_for_function(SETTLED)
    page.evaluate(DRAWN)
    assert page.get_by_test_id("stException").count() == 0


def assert_untouched(page: Any) -> None:
    """No payload ran, and none became an element."""
    assert page.evaluate("window.owned") is None
    assert page.evaluate(FOREIGN) == 0
    assert page.locator(".katex").count() == 0


def wait_until_shown(page: Any, words: str) -> None:
    """Wait until the page shows some words: as text, in a table's cells, or in an input."""
    page.wait_for_function(
        "words => [document.body.textContent, ...[...document.querySelectorAll('input, textarea')]"
        ".map(e => e.value)].some(text => text.includes(words))",
        arg=words,
    )


def test_every_page_shows_the_markup_of_others_literally(address: str, page: Any) -> None:
    for name in PAGES:
        page.goto(f"{address}/{name}?run=odd%3D1%2B1")
        settled(page)
        assert_untouched(page)
        if name == "wins":
            wait_until_shown(page, IMAGE)  # in a table, whose canvas is drawn last
    for section in ("Numbers", "Provenance", "Run again"):
        page.goto(f"{address}/?run=odd%3D1%2B1&run=failed&show={section.replace(' ', '+')}")
        settled(page)
        assert_untouched(page)
        wait_until_shown(page, IMAGE)
    wait_until_shown(page, f"ValueError: {IMAGE}")


def test_every_pair_shows_its_texts_and_its_note_literally(
    address: str, runs: Path, page: Any
) -> None:
    ids = pd.read_parquet(runs / "odd=1+1" / "pairs.parquet", columns=["pair_id"])["pair_id"]
    for number, payload in enumerate(PAYLOADS):
        page.goto(f"{address}/pairs?run=odd%3D1%2B1&pair={ids[number]}")
        settled(page, f".plc-id:text('{ids[number]}')")
        assert_untouched(page)
        texts = page.locator(".plc-text").all_text_contents()
        other = PAYLOADS[(number + 1) % len(PAYLOADS)]
        assert texts[:4] == [payload, payload, payload, other]
        assert page.locator(".plc-role").first.text_content() == IMAGE
        marks = "\n".join(page.locator(".plc-note").all_text_contents())
        assert f"prefix: {payload}" in marks
        note = page.get_by_role("textbox", name="Note")
        assert note.input_value().strip() == payload.strip()


def test_what_is_typed_is_shown_literally(address: str, page: Any) -> None:
    page.goto(f"{address}/pairs?run=odd%3D1%2B1")
    settled(page, ".plc-id")
    for payload in PAYLOADS[:6]:
        # Typed again where the page was drawn anew between the words and the Enter.
        while page.evaluate("new URLSearchParams(location.search).get('q')") != payload:
            page.get_by_role("textbox", name="Search in texts").fill(payload)
            page.keyboard.press("Enter")
            page.wait_for_timeout(500)
        settled(page)
        assert_untouched(page)
    others = ("pair", "sort", "q", "source", "judged", "show", "baseline", "decision", "label",
              "judge", "audit_text", "audit_source", "tie_source", "prompt")  # fmt: skip
    for name in PAGES:
        for query in (
            {"run": IMAGE, "audit": IMAGE},
            {"run": "odd=1+1", "audit": AUDIT} | dict.fromkeys(others, IMAGE),
        ):
            page.goto(f"{address}/{name}?{urlencode(query)}")
            settled(page)
            assert_untouched(page)


def test_a_label_audit_and_its_blind_check_show_texts_literally(
    address: str, runs: Path, page: Any
) -> None:
    ids = open_run(runs / AUDIT).pairs(["pair_id"])["pair_id"]
    for number in range(0, len(PAYLOADS), 3):
        payload = PAYLOADS[number]
        page.goto(f"{address}/label_audit?audit={AUDIT}&pair={ids[number]}")
        settled(page, ".plc-text")
        assert_untouched(page)
        texts = page.locator(".plc-text").all_text_contents()
        assert {f"{payload} {number}", f"{payload} good", f"{payload} bad"} <= set(texts)
    page.goto(f"{address}/label_audit?{urlencode({'audit': AUDIT, 'judge': IMAGE})}")
    settled(page, ".plc-text")
    page.get_by_role("button", name="Check 50 pairs blind").click()
    settled(page, "[data-action=left]")
    assert_untouched(page)
    assert page.locator("[data-at=progress]").text_content() == f"{IMAGE} · 0 of 50"
    page.wait_for_timeout(300)  # a verdict sooner than anybody reads is dropped
    page.get_by_role("button", name="Answer 1 is better").click()
    settled(page, "[data-at=progress]:has-text('1 of 50')")
    assert_untouched(page)


def test_the_page_of_answers_shows_each_of_them_literally(address: str, page: Any) -> None:
    for number in range(len(PAYLOADS)):
        page.goto(f"{address}/wins?run=odd%3D1%2B1&prompt={number:016x}")
        settled(page, ".plc-text")
        assert_untouched(page)
        assert PAYLOADS[number % len(PAYLOADS)] in page.locator(".plc-text").all_text_contents()


def test_reports_show_the_texts_of_others_literally(tmp_path: Path, runs: Path, page: Any) -> None:
    rows = [
        {"prompt": f"{payload} {n}", "chosen": payload, "rejected": f"{payload} no", IMAGE: payload,
         "source": payload, "score_chosen": n, "score_rejected": 1}
        for n, payload in enumerate(PAYLOADS)
    ]  # fmt: skip
    rows += [{"prompt": "q", "chosen": payload, "rejected": payload} for payload in PAYLOADS]
    rows += [{"prompt": "q", "chosen": {IMAGE: 1}, "rejected": payload} for payload in PAYLOADS]
    file = tmp_path / f"{IMAGE.replace('/', '')}.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    qwen().save_pretrained(tmp_path / "model")
    values = {"name": "odd", "runs_dir": str(tmp_path), "data": str(file), "lengths": [24, 64],
              "model": str(tmp_path / "model")}  # fmt: skip
    run_notebook(ROOT / "notebooks" / "data.ipynb", values)
    page.goto((tmp_path / "odd" / "report.html").as_uri())
    page.evaluate(DRAWN)
    assert_untouched(page)
    assert PAYLOADS[0] in str(page.evaluate("document.body.textContent"))

    from notebooks import training_report

    run = open_run(runs / "odd=1+1")
    parts = (
        training_report.headline(run),
        training_report.next_steps(run),
        training_report.suspicious_pairs(run, 120),
        _settings_table(run.info["config"]),
        load_pairs(file).report()._repr_html_(),
    )
    (tmp_path / "report.html").write_text(
        f"<html><meta charset=utf-8><body>{''.join(parts)}</body></html>", encoding="utf-8"
    )
    page.goto((tmp_path / "report.html").as_uri())
    page.evaluate(DRAWN)
    assert_untouched(page)
    said = str(page.evaluate("document.body.textContent"))
    ids = list(run.pairs(["pair_id"])["pair_id"])
    listed = {ids.index(pair) for pair in training_report.suspicious(run, 120)["pair_id"]}
    there = [payload for number, payload in enumerate(PAYLOADS) if number in listed]
    assert len(there) >= 4
    assert [payload for payload in there if payload not in said] == []


def _settings_table(config: dict[str, Any]) -> str:
    """The last cell of the training notebook, run on these settings."""
    notebook = json.loads((ROOT / "notebooks" / "01_train.ipynb").read_text())
    *_, cell = ("".join(c["source"]) for c in notebook["cells"] if "settings" in str(c["source"]))
    lines = [line for line in cell.splitlines() if line.startswith(("table", "pd."))]
    names = {"pd": pd, "settings": config}
    exec("\n".join(lines[:-1]), names)
    return str(eval(lines[-1], names).to_html())


def test_the_export_holds_every_text_to_the_character(runs: Path) -> None:
    run = open_run(runs / "odd=1+1")
    for form in ("parquet", "jsonl"):
        path, _ = export_cleaned(run, form)
        rows = pq.read_table(path).to_pylist() if form == "parquet" else _json_lines(path)
        told = [row["chosen"][-1]["content"] for row in rows if row["note"]]
        assert sorted(told) == sorted(PAYLOADS)
        assert {row["note"] for row in rows} >= set(PAYLOADS)
        assert {row["source"] for row in rows} == set(PAYLOADS[:6])
        assert {row[IMAGE] for row in rows} == {PAYLOADS[0]}


def _json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_csv_for_spreadsheets_computes_nothing(payload: str) -> None:
    from spreadsheet import csv_text

    table = pd.DataFrame({"run": [payload, "plain"], "number": [-1.5, 2], payload: [payload, None]})
    head, first, second = csv.reader(io.StringIO(csv_text(table)))
    for text in (head[2], first[0], first[2]):
        assert text in (payload, f"'{payload}")
        assert not text.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert first[1] == "-1.5"
    assert second == ["plain", "2.0", ""]

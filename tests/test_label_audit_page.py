"""The page of a label audit: its numbers, its pairs, and the blind check by people."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

import plc_core
from app.listing import AUDIT
from plc_core import load_pairs
from plc_core.data import flip_labels
from plc_core.files import RunError
from plc_core.label_audit.blind_check import BlindCheck, draw
from plc_core.label_audit.folder import KIND, AuditFolder, save_audit
from plc_core.runs import create_run, open_run
from plc_core.storage import MANIFEST
from tests.fake_run import write_fake_run
from tests.paths import ROOT
from tests.test_app import MOST_WORDS, OF_ONE_RUN, prose, read_by, said, words_of

MARKUP = '<img src=x onerror="owned=1"> **bold** $x$'
GOOD = ["thanks", "because", "exactly", "precise"]
BAD = ["dunno", "whatever", "maybe", "lol"]
PAGE = "views/label_audit.py"
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bool]]:
    """A directory with an audit of 150 pairs, 20 % reversed, and which labels are."""
    root, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    rows = [
        {"prompt": f"question {n} {MARKUP}", "source": f"part {MARKUP}" if n % 2 else "other",
         "chosen": " ".join(rng.choice(GOOD, 9)) + f" {n} {MARKUP}",
         "rejected": " ".join(rng.choice(BAD, 9)) + f" {n} {MARKUP}"}
        for n in range(150)
    ]  # fmt: skip
    file = root / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = flip_labels(load_pairs(file), 0.2, seed=3)
    found = plc_core.audit(pairs, evidence=["lengths", "words"])
    run = create_run(root, "audited", {"kind": KIND})
    with run.running("auditing"):
        save_audit(found, run)
    return root, dict(zip(pairs.dataset["pair_id"], pairs.dataset["flipped"], strict=True))


@pytest.fixture
def root(made: tuple[Path, dict[str, bool]], tmp_path: Path) -> Path:
    """A copy of it, whose audit is not checked yet."""
    shutil.copytree(made[0] / "audited", tmp_path / "audited")
    return tmp_path


@pytest.fixture
def opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppTest]:
    def at(page: str = PAGE, **query: str) -> AppTest:
        monkeypatch.setenv("PLC_RUNS", str(root))
        monkeypatch.setattr("sys.argv", ["inspector.py"])
        app = AppTest.from_file(ROOT / "app" / "inspector.py", default_timeout=600)
        for key, value in query.items():
            app.query_params[key] = value
        app.switch_page(page).run()
        assert not app.exception
        return app

    return at


def press(app: AppTest, action: str, pair: str | None = None) -> AppTest:
    """What the browser sends after a key, on the pair that it shows or another one."""
    shown = read_by(app)
    on = shown["last"] if action == "undo" else shown["pair"]
    entry = {"run": shown["run"], "who": shown["who"], "pair": pair or on, "action": action}
    states = app._tree.get_widget_states()
    state = states.widgets.add()
    state.id = app.get("bidi_component")[0].proto.id
    state.json_value = json.dumps({"verdict": entry | {"number": next(NUMBERS)}})
    after = app._run(states)
    assert not after.exception
    return after


def begun(app: AppTest, who: str, count: int | None = 20) -> AppTest:
    """The blind check after a person wrote their name and the button was pressed."""
    app.text_input(key="kept_judge").set_value(who)
    if count is not None:
        app.number_input(key="kept_blind").set_value(count)
    return app.run().button(key="check_blind").click().run()


def right_answer(root: Path, truth: dict[str, bool], pair: str) -> str:
    """The side of the answer that is better, as who reads the pair well would say."""
    shown = {s.pair_id: s for s in BlindCheck(root / "audited").shown()}[pair]
    return "left" if shown.chosen_left != truth[pair] else "right"


def test_it_shows_the_noise_rate_the_tables_and_texts_as_they_are(opened, root) -> None:
    app, folder = opened(), AuditFolder(open_run(root / "audited"))
    noise, table = folder.said["noise"], folder.table
    assert app.metric[0].value == (
        f"{100 * noise['rate']:.0f} % [{100 * noise['low']:.0f}, {100 * noise['high']:.0f}]"
    )
    assert app.metric[1].value == f"{(table['p_flip'] > 0.5).sum()} of 150"
    by, evidence, listed = (frame.value for frame in app.dataframe[:3])
    assert sorted(by["group"]) == ["other", f"part {MARKUP}"] and by["pairs"].tolist() == [75, 75]
    assert evidence["evidence"].tolist()[0] == "words"
    assert listed["p_flip"].is_monotonic_decreasing and len(listed) == 150
    assert MARKUP in listed["pair"].iloc[0]
    assert "<img" not in said(app) and "&lt;img src=x onerror=&quot;owned=1&quot;&gt;" in said(app)
    # A search and a source leave fewer pairs; a link opens the same.
    app.text_input(key="kept_audit_text").set_value("QUESTION 14 ").run()
    assert app.dataframe[2].value["pair"].tolist() == [f"question 14 {MARKUP}"]
    again = opened(audit_source="other", pair=table["pair_id"][3])
    assert len(again.dataframe[2].value) == 75 and table["pair_id"][3] in said(again)
    assert "no pair" in said(opened(pair="unknown"))


@pytest.mark.parametrize("texts", [(GOOD, BAD), (GOOD, GOOD)])
def test_it_has_few_words_of_prose(opened, root, texts) -> None:
    """Of a known rate and of an unknown one; why scores have no weight is behind a click."""
    rng = np.random.default_rng(1)
    rows = [
        {"prompt": f"question {n}", "score_chosen": 2, "score_rejected": 1,
         "chosen": " ".join(rng.choice(texts[0], 9)), "rejected": " ".join(rng.choice(texts[1], 9))}
        for n in range(150)
    ]  # fmt: skip
    (root / "scored.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = create_run(root, "scored", {"kind": KIND})
    with run.running("auditing"):
        save_audit(plc_core.audit(root / "scored.jsonl"), run)
    known = AuditFolder(run).said["noise"]["rate"] is not None
    assert known == (texts == (GOOD, BAD))
    app = opened(audit="scored")
    assert "of the labels agree with the scores" in said(app)
    assert 5 < words_of(app) <= MOST_WORDS, prose(app.main)


def test_a_blind_check_ends_in_what_was_found(opened, root, made) -> None:
    app = begun(opened(), "Ada")
    seen = []
    while pair := read_by(app)["pair"]:
        shown = read_by(app)
        assert shown["done"] == len(seen) and shown["total"] == 20
        assert not any(word in str(shown) + said(app) for word in ("p_flip", "chosen", "reject"))
        seen.append(pair)
        press(app, right_answer(root, made[1], pair))
    check = BlindCheck(root / "audited")
    assert seen == [s.pair_id for s in check.shown()]
    table = app.dataframe[0].value
    wrong = sum(made[1][pair] for pair in seen)
    by_stratum = AuditFolder(open_run(root / "audited")).verified()
    assert table["pairs judged"].sum() == 40 and table["pairs judged"].iloc[-1] == 20
    assert (by_stratum["reversed"] * by_stratum["pairs"])[:-1].sum() == pytest.approx(wrong)
    suspicious = [s.pair_id for s in check.shown() if s.stratum >= 3]
    assert app.metric[2].value.startswith(f"{100 * np.mean([made[1][p] for p in suspicious]):.0f}")
    assert "20 verdicts by 1 person" in said(app)


def test_a_verdict_lands_on_the_pair_that_was_shown_and_can_be_taken_back(opened, root) -> None:
    app, check = begun(opened(), ""), BlindCheck(root / "audited")
    first, second = (s.pair_id for s in check.shown()[:2])
    press(app, "left")
    press(app, "neither", pair=first)  # the same pair again: a key that came late
    assert check.verdicts()[["pair_id", "verdict"]].values.tolist() == [[first, "neither"]]
    press(app, "right")
    press(app, "undo")
    assert (read_by(app)["pair"], read_by(app)["last"]) == (second, first)
    press(app, "undo")  # of the later verdict on it: the earlier one holds again
    assert check.verdicts()[["pair_id", "verdict"]].values.tolist() == [[first, "left"]]
    press(app, "undo")
    assert not len(check.verdicts()) and read_by(app)["last"] is None
    check.take_back(first)  # nothing is left of it
    check.add(first, "right")
    check.add(first, "right")  # sent twice
    check.take_back(first)
    assert not len(check.verdicts())
    press(app, "left", pair="unknown")
    assert "not saved" in app.error[0].value and not len(check.verdicts())


def test_two_people_judge_the_same_pairs_each_for_themselves(opened, root) -> None:
    press(begun(opened(), "Ada"), "left")
    app = opened()
    assert app.number_input.values == [] and "Go on" in app.button(key="check_blind").label
    app = begun(app, "Bob", None)
    assert read_by(app)["done"] == 0
    press(press(app, "right"), "neither")
    verdicts = BlindCheck(root / "audited").verdicts()
    assert verdicts["who"].tolist() == ["Ada", "Bob", "Bob"]
    assert BlindCheck(root / "audited").checked()["reversed"].tolist()[0] == 0.5
    press(app, "undo")
    assert BlindCheck(root / "audited").verdicts()["who"].tolist() == ["Ada", "Bob"]
    assert "2 verdicts by 2 people" in said(opened())


def test_a_check_that_has_begun_stays_and_survives_a_line_that_was_cut(root) -> None:
    check, folder = BlindCheck(root / "audited"), AuditFolder(open_run(root / "audited"))
    drawn = draw(folder.table["pair_id"].tolist(), folder.table["p_flip"].to_numpy(), 20)
    check.start(drawn)
    check.start(drawn)  # nobody has judged yet
    check.add(drawn[0].pair_id, "left")
    with pytest.raises(RunError, match="has begun"):
        check.start(drawn)
    with (check.folder / "verdicts.jsonl").open("a") as file:
        file.write('{"pair_id": "x", "verd')
    check.add(drawn[1].pair_id, "right")
    assert check.verdicts()["verdict"].tolist() == ["left", "right"]


def test_a_damaged_file_of_an_audit_is_a_sentence(opened, root) -> None:
    begun(opened(), "Ada")
    folder = AuditFolder(open_run(root / "audited"))
    folder.check.add(folder.check.shown()[0].pair_id, "left", "Ada")
    names = ["blind_check/verdicts.jsonl", "blind_check/pairs.json", "audit.parquet"]
    names += [f"tables/{name}" for name in ("evidence.csv", "noise-by-source.csv", MANIFEST)]
    for name in names:
        path = root / "audited" / name
        whole = path.read_bytes()
        hit = bytearray(whole)
        hit[len(hit) // 2] ^= 1
        path.write_bytes(hit)
        assert f"{path.name}" in said(opened()).replace("\\", ""), name
        path.write_bytes(whole)
    shown = root / "audited" / "blind_check" / "pairs.json"
    whole = shown.read_bytes()
    shown.unlink()
    assert "the verdicts (1) count for nothing" in said(opened()).replace("\\", "")
    shown.write_bytes(whole)
    assert "damaged" not in said(opened())


def test_other_pages_say_that_it_is_an_audit(opened, root) -> None:
    assert AUDIT == KIND
    for page in OF_ONE_RUN:
        assert "is a label audit" in said(opened(page, run="audited")).replace("\\", "")
    app = opened("views/runs.py", run="audited")
    assert "is a label audit" in said(app)
    assert app.selectbox[-1].options == [f"audited · {AUDIT}"]
    assert app.get("page_link")[0].proto.label == "Label audit: audited"
    write_fake_run(root, "trained", pairs=20)
    assert "is not a label audit" in said(opened(audit="trained")).replace("\\", "")
    (root / "audited" / "audit.parquet").unlink()
    assert "is not finished" in said(opened(audit="audited"))

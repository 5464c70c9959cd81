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
from app.audit_words import rate
from app.listing import AUDIT
from plc_core import load_pairs
from plc_core.data import flip_labels
from plc_core.label_audit.blind_check import BlindCheck, draw
from plc_core.label_audit.folder import KIND, AuditFolder, save_audit
from plc_core.label_audit.next_steps import advice, exported_to, train_command
from plc_core.runs import create_run, open_run
from plc_core.storage.files import RunError, write_json
from plc_core.storage.manifest import MANIFEST
from tests.fake_run import write_fake_run
from tests.paths import ROOT
from tests.test_app import MOST_WORDS, OF_ONE_RUN, prose, read_by, said, send, table_with, words_of

MARKUP = '<img src=x onerror="owned=1"> **bold** $x$'
GOOD = ["thanks", "because", "exactly", "precise"]
BAD = ["dunno", "whatever", "maybe", "lol"]
PAGE = "views/label_audit.py"
NUMBERS = itertools.count(1)


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
    on = shown["judged"][-1] if action == "undo" else pair_of(app)
    entry = {"run": shown["run"], "who": shown["who"], "pair": pair or on, "action": action}
    after = send(app, {"client": "browser", "entries": [entry | {"seq": next(NUMBERS)}]})
    assert not after.exception
    return after


def pair_of(app: AppTest) -> str | None:
    """The pair that the browser shows: the first that this person has not judged."""
    shown = read_by(app)
    return next((pair for pair in shown["order"] if pair not in shown["judged"]), None)


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
    evidence, by, listed = (frame.value for frame in app.dataframe[:3])
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


def test_groups_are_pointed_to_where_only_their_rates_are_known(opened, root) -> None:
    more = "the groups beside say more"
    assert more not in said(opened())
    path = root / "audited" / "run.json"
    told = json.loads(path.read_text())
    told["audit"]["noise"] |= {"rate": None, "low": 0.0, "high": 0.45}
    write_json(path, told)
    assert more in said(opened())


def test_pairs_are_filtered_by_the_groups_that_noise_rates_were_asked_by(opened, root) -> None:
    """The noisiest group first, in the table and in the filter; a column stands in the list."""
    rng = np.random.default_rng(2)
    rows = [
        {"prompt": f"question {n}", "Who? ": ("good", "bad")[n % 2], "year": 2000 + n % 2,
         "chosen": " ".join(rng.choice(GOOD, 9)), "rejected": " ".join(rng.choice(BAD, 9))}
        for n in range(400)
    ]  # fmt: skip
    for row in rows[1:160:2]:
        row["chosen"], row["rejected"] = row["rejected"], row["chosen"]
    file = root / "grouped.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = plc_core.audit(file, evidence=["words"], by="Who? ")
    run = create_run(root, "grouped", {"kind": KIND})
    with run.running("auditing"):
        save_audit(found, run, ["Who? ", "year", "split"])
    app = opened(audit="grouped")
    rates = table_with(app, "group")
    assert rates["group"].tolist() == ["bad", "good"] and (rates["pairs"] == 200).all()
    listed = table_with(app, "reason")
    assert list(listed) == ["p_flip", "pair", "reason", "Who? ", "year"]
    assert listed["Who? "].iloc[0] == "bad"
    picker = app.multiselect(key="kept_audit_Who? ")
    assert picker.options == (rates["group"] + " · " + rates["reversed"]).tolist()
    picker.set_value(["good"]).run()
    assert set(table_with(app, "reason")["Who? "]) == {"good"}
    assert "200 of 400 pairs" in said(app)
    assert len(table_with(opened(audit="grouped", audit_year="2001"), "reason")) == 200


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
    while pair := pair_of(app):
        shown = read_by(app)
        assert shown["judged"] == seen and len(shown["order"]) == 20 and pair in shown["pairs"]
        assert not any(word in str(shown) + said(app) for word in ("p_flip", "chosen", "reject"))
        seen.append(pair)
        press(app, right_answer(root, made[1], pair))
    check = BlindCheck(root / "audited")
    assert seen == [s.pair_id for s in check.shown()]
    table = app.dataframe[0].value
    wrong = sum(made[1][pair] for pair in seen)
    by_stratum = AuditFolder(open_run(root / "audited")).verified()
    assert table["judged"].sum() == 40 and table["judged"].iloc[-1] == 20
    assert (by_stratum["reversed"] * by_stratum["pairs"])[:-1].sum() == pytest.approx(wrong)
    suspicious = [s.pair_id for s in check.shown() if s.stratum >= 3]
    assert app.metric[2].value.startswith(f"{100 * np.mean([made[1][p] for p in suspicious]):.0f}")
    assert "20 verdicts by 1 person" in said(app)


def test_a_verdict_lands_on_the_pair_that_was_shown_and_can_be_taken_back(opened, root) -> None:
    app, check = begun(opened(), "Ada"), BlindCheck(root / "audited")
    first, second = (s.pair_id for s in check.shown()[:2])
    press(app, "left")
    press(app, "neither", pair=first)  # the same pair again: a key that came late
    assert check.verdicts()[["pair_id", "verdict"]].values.tolist() == [[first, "neither"]]
    press(app, "right")
    press(app, "undo")
    assert pair_of(app) == second and read_by(app)["judged"] == [first]
    press(app, "undo")  # of the later verdict on it: the earlier one holds again
    assert check.verdicts()[["pair_id", "verdict"]].values.tolist() == [[first, "left"]]
    press(app, "undo")
    assert not len(check.verdicts()) and read_by(app)["judged"] == []
    check.take_back(first)  # nothing is left of it
    check.add(first, "right")
    check.add(first, "right")  # sent twice
    check.take_back(first)
    assert not len(check.verdicts())
    press(app, "left", pair="unknown")
    assert "not saved" in app.error[0].value and not len(check.verdicts())
    log = [
        {"seq": next(NUMBERS), "run": "audited", "who": "Ada", "pair": pair, "action": "left"}
        for pair in (first, second)
    ]
    for entries in (log[:1], log):  # the first one again, as long as it was not acknowledged
        send(app, {"client": "browser", "entries": entries})
    lines = (check.folder / "verdicts.jsonl").read_text().splitlines()
    assert [json.loads(line)["pair_id"] for line in lines[-2:]] == [first, second]


def test_nobody_judges_without_a_name(opened, root) -> None:
    app = begun(opened(), " ")
    assert "Write your name first" in app.error[0].value
    assert not BlindCheck(root / "audited").shown()
    press(begun(app, "Ada"), "left")
    assert opened().button(key="check_blind").label == "Continue with the blind check"
    assert opened(judge="Ada").button(key="check_blind").label.endswith("(1 of 20)")
    assert "Write your name on the page" in said(opened(check="1"))


def test_verdicts_that_contradict_the_audit_are_a_warning(opened, root, made) -> None:
    folder = AuditFolder(open_run(root / "audited"))
    folder.check.start(
        draw(folder.table["pair_id"].tolist(), folder.table["p_flip"].to_numpy(), 60)
    )
    for pair in folder.check.shown():  # as who finds nearly every label reversed
        folder.check.add(pair.pair_id, "right" if pair.chosen_left else "left", "Ada")
    app = opened()
    moved, people = (folder.flips().noise(), folder.by_people())
    told = [warning.value for warning in app.warning]
    assert (
        f"By the verdicts {rate(*people[:3])}, by the audit after them {rate(*moved[:3])}: only "
        "the verdicts count. Do not rely on p_flip's values."
    ) in told
    after = next(metric for metric in app.metric if metric.label == "After the check")
    assert after.value == rate(*people[:3]) and after.proto.help == "By people's verdicts alone."
    assert words_of(app) <= MOST_WORDS, prose(app.main)


def test_the_pairs_are_written_by_a_policy_and_the_command_trains_on_them(opened, root) -> None:
    app, folder = opened(), AuditFolder(open_run(root / "audited"))
    for policy in ("weight", "flip"):
        app.selectbox(key="kept_policy").set_value(policy).run()
        file = exported_to(folder, policy)
        assert app.code[0].value == train_command(folder, policy, file)
        assert not app.get("download_button") and not file.exists()
        app.button(key="write_pairs").click().run()
        assert app.get("download_button") and not app.exception
        assert len(load_pairs(file)) == 150
    folder.check.start(draw(folder.table["pair_id"].tolist(), folder.p_flip(), 20))
    folder.check.add(folder.check.shown()[0].pair_id, "left", "Ada")
    assert "Written before the latest verdicts" in said(opened(policy="flip"))
    exported_to(folder, "drop").mkdir()  # nothing can be written there
    app = opened(policy="drop").button(key="write_pairs").click().run()
    assert "cannot be written" in app.error[0].value


def test_a_policy_that_the_audit_speaks_against_has_a_warning(opened, root) -> None:
    """A hundred and fifty pairs leave the noise rate, and so what turning mends, too open."""
    found = advice(AuditFolder(open_run(root / "audited")))
    assert found.against == ("flip",)
    assert [warning.value for warning in opened(policy="flip").warning] == [found.said]
    assert not opened(policy="weight").warning


def test_two_people_judge_the_same_pairs_each_for_themselves(opened, root) -> None:
    press(begun(opened(), "Ada"), "left")
    app = opened()
    assert app.number_input.values == [] and "Continue" in app.button(key="check_blind").label
    app = begun(app, "Bob", None)
    assert read_by(app)["judged"] == []
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
    assert "is damaged" not in said(opened()) and "count for nothing" not in said(opened())


def test_verdicts_of_another_draw_are_a_sentence(root) -> None:
    """Whose pairs may be the same and stand on other sides."""
    folder = AuditFolder(open_run(root / "audited"))
    check, table = folder.check, folder.table
    ids, chances = table["pair_id"].tolist(), table["p_flip"].to_numpy()
    earlier, later = (draw(ids, chances, 20, seed) for seed in (1, 2))
    pairs, log = (check.folder / name for name in ("pairs.json", "verdicts.jsonl"))
    check.start(earlier)
    of_earlier = pairs.read_bytes()
    check.start(later)
    check.add(later[0].pair_id, "left", "Ada")
    of_later = pairs.read_bytes()
    pairs.write_bytes(of_earlier)
    for use in (check.verdicts, check.checked, folder.noise):
        with pytest.raises(RunError, match=r"pairs\.json is of another draw.*check anew"):
            use()
    pairs.write_bytes(of_later)
    assert len(check.verdicts()) == 1
    check.take_back(later[0].pair_id, "Ada")
    check.start(earlier)  # nobody has judged any more
    check.add(earlier[0].pair_id, "right", "Ada")
    assert check.verdicts()["pair_id"].tolist() == [earlier[0].pair_id]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    older = [{k: v for k, v in line.items() if k not in ("draw", "checksum")} for line in lines]
    log.write_text("".join(json.dumps(line) + "\n" for line in older))
    pairs.write_bytes(of_later)
    assert len(check.verdicts()) == 1  # of versions that did not say it


def test_what_is_gone_of_an_audit_is_a_sentence(opened, root) -> None:
    folder = root / "audited"

    def told() -> str:
        return said(opened()).replace("\\", "")

    for name, sentence in (
        ("audit.parquet", f"{folder}/audit.parquet is missing. Put a copy of it back"),
        ("pairs.parquet", f"{folder}/pairs.parquet is missing. Put a copy of it back"),
        ("status.json", f"{folder}/status.json is missing. Put a copy of it back"),
        ("run.json", "audited cannot be read."),
    ):
        whole = (folder / name).read_bytes()
        (folder / name).unlink()
        assert sentence in told(), name
        (folder / name).write_bytes(whole)
    assert "missing" not in told()
    (folder / "status.json").unlink()
    assert len(opened().metric) == 2  # which need no state


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
    record = json.loads((root / "audited" / "run.json").read_text())
    del record["audit"]
    write_json(root / "audited" / "run.json", record)
    assert "is not finished" in said(opened(audit="audited"))

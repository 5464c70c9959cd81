"""Every page on good, broken, live and failed runs and on texts that try to break out."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inspection.digest import kept
from inspection.judged_answers import judged
from inspection.pair import SNIPPET
from inspection.preparing import prepare
from streamlit.testing.v1 import AppTest

from app.marking import marked, plain, turn
from plc_core.analysis import audit
from plc_core.analysis.noise import P_FLIP_FROM
from plc_core.analysis.routing.hard_pairs import hard_pair_table, hard_pairs_shown
from plc_core.analysis.routing.human_disagreement import (
    agreement,
    agreement_sentence,
    agreement_shown,
)
from plc_core.analysis.statistics import mann_whitney, read_aloud
from plc_core.batch import __main__ as batch
from plc_core.data import load_pairs
from plc_core.data.votes import vote_group
from plc_core.evaluation.sides import win_rate_cells
from plc_core.parameters import notebook_values
from plc_core.runs import open_run
from plc_core.runs.decisions import read_decisions
from plc_core.storage.files import write_json, write_table
from tests.fake_run import (
    NASTY_TEXTS,
    change_json,
    still_training,
    write_broken_runs,
    write_fake_answers,
    write_fake_report,
    write_fake_run,
)
from tests.huge_run import write_huge_run
from tests.paths import ROOT
from tests.rewritten import rewrite

OF_ONE_RUN = tuple(
    f"views/{name}.py"
    for name in ("verdict", "routing", "pairs", "ties", "human_disagreement", "corruption", "tests")
)
PAGES = ("views/runs.py", *OF_ONE_RUN, "views/wins.py")
Opened = Callable[..., AppTest]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One runs directory with every kind of run, its odd texts included."""
    root = tmp_path_factory.mktemp("runs")
    good = write_fake_run(root, "good", seed=9, batch=5, votes=True, ties=12)
    write_fake_answers(good)
    write_fake_run(
        root, "other", seed=1, epochs=2, oracle=False, sources=("one", "two"), posterior=False
    )
    write_fake_run(root, "live", seed=2, state="running")
    write_fake_run(root, "failed", seed=3, state="failed")
    write_fake_run(root, "nasty", seed=4, pairs=30, texts=NASTY_TEXTS, scores=False, oracle=False)
    write_broken_runs(root)
    return root


@pytest.fixture
def opened(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A function that opens the app at a page by a link, and checks that nothing broke."""

    def at_page(page: str, /, *, root: Path = runs, **query: str | list[str]) -> AppTest:
        monkeypatch.setenv("PLC_RUNS", str(root))
        monkeypatch.setattr("sys.argv", ["inspector.py"])
        app = AppTest.from_file(ROOT / "app" / "inspector.py", default_timeout=600)
        for key, value in query.items():
            app.query_params[key] = value
        app.switch_page(page).run()
        assert not app.exception
        return app

    return at_page


def read_by(app: AppTest) -> dict[str, Any]:
    """What the browser was told of the pair on the screen and those around it; empty without."""
    found = app.get("bidi_component")
    return json.loads(found[0].proto.json or found[0].proto.mixed.json) if found else {}


def press(app: AppTest, *entries: dict[str, Any], client: str = "browser") -> AppTest:
    """What the browser sends after keys: entries with the run and the pair that was shown."""
    shown = read_by(app)
    acked = shown["acked"]
    start = acked["seq"] if acked["client"] == client else 0
    sent = [
        {"seq": start + n, "run": shown["run"]} | entry for n, entry in enumerate(entries, start=1)
    ]
    return send(app, {"client": client, "entries": sent})


def send(app: AppTest, log: dict[str, Any]) -> AppTest:
    """What a component of the browser sends: the log of what was pressed."""
    states = app._tree.get_widget_states()
    state = states.widgets.add()
    state.id = app.get("bidi_component")[0].proto.id
    state.json_value = json.dumps({"log": log})
    return app._run(states)


def decision(pair: str, what: str | None, to: str | None = None) -> dict[str, Any]:
    """A decision of a key, and the pair that is shown after it."""
    return {"kind": "decide", "pair": pair, "decision": what, "to": to or pair}


def said(app: AppTest) -> str:
    """All plain texts on the page, and what is behind its question marks."""
    kinds = (
        "title",
        "subheader",
        "text",
        "caption",
        "markdown",
        "info",
        "warning",
        "error",
        "code",
    )
    texts = [str(element.value) for kind in kinds for element in app.get(kind)]
    texts += [element.proto.help for element in [*app.markdown, *app.metric]]
    return "\n".join(texts) + "\n".join(
        [element.proto.body for element in app.get("html")] + [shown_html(app)]
    )


def shown_html(app: AppTest) -> str:
    """The pair on the screen as HTML; empty without one."""
    shown = read_by(app)
    return shown["pairs"][shown["current"]] if shown.get("current") else ""


def table_with(app: AppTest, column: str) -> pd.DataFrame:
    """The first table on the page with such a column."""
    return next(table.value for table in app.dataframe if column in table.value)


def reports_of(app: AppTest) -> list[tuple[str, str]]:
    """The buttons that hand out a report: what they say, and where it lies."""
    found = [button.proto for button in app.get("download_button")]
    return [(button.label, button.help) for button in found if "eport" in button.label]


def first_pair(root: Path, run: str, place: int = 0) -> str:
    """The id of a pair of the run."""
    return str(pd.read_parquet(root / run / "pairs.parquet", columns=["pair_id"])["pair_id"][place])


def shown_pair(app: AppTest) -> str:
    """The id of the pair whose texts are on the page; empty without one."""
    found = re.search(r'<div class="plc-id">(.*?)</div>', shown_html(app))
    return found[1] if found else ""


def files_of(path: Path) -> set[str]:
    """All files below a run's folder."""
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("run", ["good", "other", "live", "failed", "nasty"])
def test_every_page_opens_every_readable_run(opened: Opened, run: str) -> None:
    app = opened(PAGES[0], run=run)
    for page in PAGES:
        app.switch_page(page).run()
        assert not app.exception
        assert not [w.value for w in app.warning if "cannot be shown" in w.value]
        if page == "views/human_disagreement.py" and run != "good":
            assert "No pair of this run has votes" in said(app)
            continue
        if page == "views/verdict.py":
            assert len(re.findall(r'class="v-said (?:yes|no|undecided|unknown)"', said(app))) == 5
            continue
        assert len(app.get("plotly_chart")) >= 1
        assert "**Shows**" in said(app)
        assert "Does not show" in said(app)


MOST_WORDS = 60


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_few_words_of_prose(opened: Opened, page: str) -> None:
    """Beside charts, tables and widgets, and without what stands behind a question mark."""
    app = opened(page, run="good")
    assert 5 < words_of(app) <= MOST_WORDS, prose(app.main)


def words_of(app: AppTest) -> int:
    """How many words of prose a page has, those beside the pair on the screen too."""
    texts = [*prose(app.main), html_prose(shown_html(app))]
    return len(re.findall(r"[^\W\d]{2,}", " ".join(texts)))


def prose(element: Any) -> list[str]:
    """The texts below an element, those that stand behind a click left out."""
    if element.type in ("expander", "popover"):
        return []
    if element.type in ("title", "subheader", "caption", "markdown", "text", "info", "warning"):
        return [str(element.value)]
    if element.type == "html":
        return [html_prose(element.proto.body)]
    return [text for child in getattr(element, "children", {}).values() for text in prose(child)]


def html_prose(body: str) -> str:
    """What is said in HTML: no style, gauge or number, and neither a text nor a name of data."""
    body = re.sub(r"<style>.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'<div class="v-gauge">.*?</div>|<span>[^<]*</span> <b>[^<]*</b>', "", body)
    body = re.sub(r'<div class="plc-(?:text|id|role)".*?</div>', "", body, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", " ", body)


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        ("empty", "it has no run\\.json"),
        ("half", "cannot be read\\: Unterminated string"),
        ("newer", "has schema 99\\, and this version reads schema 1"),
        ("listed", "should hold a JSON object but holds a list"),
    ],
)
def test_a_broken_run_is_explained(opened: Opened, run: str, sentence: str) -> None:
    app = opened(PAGES[0], run=run)
    for page in (PAGES[0], *OF_ONE_RUN):
        app.switch_page(page).run()
        assert not app.exception
        assert sentence in said(app)


@pytest.mark.parametrize("name", ["../good", "..", "/etc", "a/b", "$x$ <b>", "not-there"])
def test_names_that_lead_elsewhere_are_refused(opened: Opened, name: str) -> None:
    app = opened("views/routing.py", run=name)
    for page in OF_ONE_RUN:
        app.switch_page(page).run()
        assert "cannot be shown here" in said(app)
        assert not app.get("plotly_chart")


def test_links_that_lead_elsewhere_are_refused(opened: Opened, tmp_path: Path) -> None:
    write_fake_run(tmp_path / "outside", "secret", pairs=20)
    root = tmp_path / "runs"
    write_fake_run(root, "good", pairs=20)
    (root / "folder").symlink_to(tmp_path / "outside" / "secret")
    inner = write_fake_run(root, "inner", pairs=20, seed=1)
    (inner / "pairs.parquet").unlink()
    (inner / "pairs.parquet").symlink_to(tmp_path / "outside" / "secret" / "pairs.parquet")
    answered = write_fake_run(root, "answered", pairs=20, seed=2)
    write_fake_answers(tmp_path / "outside" / "secret")
    (answered / "judgements").symlink_to(tmp_path / "outside" / "secret" / "judgements")
    for run in ("folder", "inner", "answered"):
        app = opened(PAGES[0], root=root, run=run)
        for page in (PAGES[0], *OF_ONE_RUN):
            app.switch_page(page).run()
            assert "leads outside" in said(app)
            assert not app.get("plotly_chart") or page == PAGES[0]
    assert "leads outside" in said(opened("views/wins.py", root=root, run="answered"))


@pytest.mark.parametrize("page", ["missing", "empty"])
def test_without_runs_the_app_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    root = tmp_path / "runs"
    if page == "empty":
        root.mkdir()
    monkeypatch.setenv("PLC_RUNS", str(root))
    monkeypatch.setattr("sys.argv", ["inspector.py"])
    app = AppTest.from_file(ROOT / "app" / "inspector.py").run()
    assert not app.exception
    assert "make demo" in said(app)


def test_the_argument_wins_over_the_environment(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLC_RUNS", str(tmp_path / "nowhere"))
    monkeypatch.setattr("sys.argv", ["inspector.py", "--runs", str(runs)])
    assert "make demo" not in said(AppTest.from_file(ROOT / "app" / "inspector.py").run())


def test_failed_and_live_runs_tell_their_state(opened: Opened) -> None:
    app = opened("views/runs.py", run=["failed", "good"])
    assert "tried to allocate 2 GiB" in said(app)
    table = app.dataframe[0].value.set_index("run")
    assert table.loc["live", ["state", "progress"]].tolist() == ["running", 50]
    assert table.loc["half", "state"] == "unreadable"


def test_a_run_that_ended_early_says_from_where_it_can_go_on(
    opened: Opened, tmp_path: Path
) -> None:
    failed = write_fake_run(tmp_path, "failed", pairs=20, state="failed")
    assert "resume" not in said(opened("views/runs.py", root=tmp_path, run="failed"))
    for step in (4, 8):
        (failed / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
    write_json(failed / "checkpoints" / "checkpoint-4" / "trainer_state.json", {"global_step": 4})
    app = opened("views/runs.py", root=tmp_path, run="failed")
    assert "after step 4: start it again with the same parameters and `-p resume true`" in said(app)


def test_live_runs_say_what_they_do(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "live", pairs=20, state="running")
    change_json(path / "status.json", phase="reference *log-probs*", done=1024, total=4096)
    bar = opened("views/runs.py", root=tmp_path).get("progress")[0].proto
    assert bar.text.startswith(r"reference \*log\-probs\*\: 1\,024 of 4\,096 · heartbeat")
    assert bar.value == 25
    change_json(path / "status.json", phase="preparing", done=None, total=None)
    bar = opened("views/runs.py", root=tmp_path).get("progress")[0].proto
    assert bar.text.startswith("preparing · heartbeat")


def test_the_default_is_the_newest_training_run_with_visits(opened: Opened, tmp_path: Path) -> None:
    write_fake_run(tmp_path, "trained", pairs=20, seed=1)
    early = write_fake_run(tmp_path, "early", pairs=20, seed=2)
    shutil.rmtree(early / "visits")
    write_fake_report(tmp_path, "report", "2026-02-01T00:00:00+00:00")
    app = opened("views/runs.py", root=tmp_path)
    assert app.query_params["run"] == "trained"
    assert app.get("plotly_chart")
    write_fake_run(tmp_path, "later", pairs=20, seed=9)
    app.run()
    assert "Shown: trained" in said(app)
    app.switch_page("views/pairs.py").run()
    assert app.selectbox(key="run_picker").value == "trained"


def test_reports_are_listed_apart(opened: Opened, tmp_path: Path) -> None:
    run = write_fake_run(tmp_path, "trained", pairs=20)
    (run / "report.html").write_text("")
    report = write_fake_report(tmp_path, "report", "2026-02-01T09:30:00+00:00")
    app = opened("views/runs.py", root=tmp_path)
    assert app.dataframe[0].value["run"].tolist() == ["trained"]
    for folder in (report, run):
        app.selectbox(key="kept_report").set_value(folder.name).run()
        assert reports_of(app)[-1] == ("Download the report", plain(f"{folder}/report.html"))
    assert reports_of(app)[0] == ("Report of trained", plain(f"{run}/report.html"))
    app.switch_page("views/ties.py").run()
    assert app.selectbox(key="run_picker").options == ["trained"]
    for page in PAGES[:-1]:
        assert "is an analysis" in said(opened(page, root=tmp_path, run="report"))


@pytest.mark.parametrize("kind", ["sft", "reward-model"])
def test_a_stage_before_is_listed_with_its_report_and_has_no_pairs(
    opened: Opened, tmp_path: Path, kind: str
) -> None:
    folder = write_fake_report(tmp_path, "stage", "2026-02-01T09:30:00+00:00")
    change_json(folder / "run.json", kind=kind)
    app = opened("views/runs.py", root=tmp_path)
    assert not app.exception
    assert reports_of(app) == [("Download the report", plain(f"{folder}/report.html"))]
    assert "has no pairs of its own" in said(opened("views/ties.py", root=tmp_path, run="stage"))


def test_the_list_shows_nothing_of_a_linked_record(opened: Opened, tmp_path: Path) -> None:
    outside = write_fake_run(tmp_path / "outside", "secret", pairs=20, model="secret-model")
    root = tmp_path / "runs"
    write_fake_run(root, "good", pairs=20)
    inner = write_fake_run(root, "inner", pairs=20, seed=1)
    (inner / "run.json").unlink()
    (inner / "run.json").symlink_to(outside / "run.json")
    table = opened("views/runs.py", root=root).dataframe[0].value.set_index("run")
    assert table.loc["inner", ["state", "model"]].tolist() == ["unreadable", ""]
    assert "leads outside" in table.loc["inner", "remark"]


def test_the_numbers_have_the_noise_of_the_first_epoch(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "long", pairs=40, epochs=3)
    write_fake_run(tmp_path, "old", pairs=40, seed=1, posterior=False)
    metrics = pd.read_parquet(path / "metrics.parquet")
    later = metrics["epoch"] >= 1
    metrics.loc[later, ["noise_rate", "noise_low", "noise_high"]] = 0.0008, 0.0, 0.01
    rewrite(path / "metrics.parquet", metrics)
    app = opened("views/runs.py", root=tmp_path, run=["long", "old"], show="Numbers")
    shown = next(e for e in app.dataframe if "loss" in e.value)
    assert json.loads(shown.proto.columns)["margin_mean"]["label"] == "mean margin m"
    table = shown.value.set_index("run")
    assert table.loc["long", "reversed labels, 1st epoch"] == "27 % [21, 33]"
    assert pd.isna(table.loc["old", "reversed labels, 1st epoch"])
    assert not any("noise" in name for name in table)
    assert "at the end of the first epoch" in said(app)
    app = opened("views/runs.py", root=tmp_path, run="old", show="Numbers")
    assert "reversed labels" not in next(e.value for e in app.dataframe if "loss" in e.value)


def test_how_many_runs_and_which_are_chosen_is_said(opened: Opened) -> None:
    app = opened("views/runs.py", run=["good", "gone"])
    assert "9 runs · chosen: **good**, **gone** (not in this directory)" in said(app)
    app.text_input[0].set_value("plc oth").run()
    assert "1 of 9 runs match the filter · chosen: **good** (not in this list)" in said(app)


def test_the_runs_filter_finds_by_name_and_setting(opened: Opened) -> None:
    app = opened("views/runs.py")
    app.text_input[0].set_value("plc oth").run()
    assert app.dataframe[0].value["run"].tolist() == ["other"]
    app.text_input[0].set_value("nothing like this").run()
    assert "No run matches" in said(app)


def test_provenance_shows_what_differs(opened: Opened) -> None:
    app = opened("views/runs.py", run=["good", "other"], show="Provenance")
    fields = app.dataframe[-1].value["field"].tolist()
    assert "config.seed" in fields
    assert "config.beta" not in fields
    app.toggle[0].set_value(False).run()
    assert "config.beta" in app.dataframe[-1].value["field"].tolist()


@pytest.mark.parametrize(
    ("section", "change", "sentence"),
    [
        ("reference", {"model": "b" * 16}, "different starting weights (reference.model)"),
        ("data", {"fingerprint": "e" * 16}, "different data (data.fingerprint)"),
    ],
)
def test_runs_that_are_not_like_for_like_are_told(
    opened: Opened, tmp_path: Path, section: str, change: dict[str, str], sentence: str
) -> None:
    paths = [write_fake_run(tmp_path, name, pairs=20) for name in ("a", "b")]
    both = {"run": ["a", "b"], "show": "Provenance"}
    assert not opened("views/runs.py", root=tmp_path, **both).warning
    info = open_run(paths[1]).info
    change_json(paths[1] / "run.json", **{section: info[section] | change})
    assert sentence in said(opened("views/runs.py", root=tmp_path, **both))


def test_runs_of_older_versions_are_compared_by_what_they_hold(
    opened: Opened, tmp_path: Path
) -> None:
    paths = [write_fake_run(tmp_path, name, pairs=20) for name in ("a", "b", "new")]
    for path, weights in zip(paths, ("1" * 16, "2" * 16), strict=False):
        change_json(path / "run.json", reference={"weights": weights}, data={"rows": 20})
    old = opened("views/runs.py", root=tmp_path, run=["a", "b"], show="Provenance")
    assert "different starting weights (reference.weights)" in said(old)
    assert "in another form" in said(old)
    app = opened("views/runs.py", root=tmp_path, run=["a", "new"], show="Provenance")
    assert "cannot be told" in said(app)


def test_the_data_of_a_run_is_told_in_a_sentence(opened: Opened, runs: Path) -> None:
    app = opened("views/runs.py", run="good", show="Provenance")
    assert plain(open_run(runs / "good").data_sentence()) in said(app)


def test_runs_without_a_correction_are_shown(opened: Opened, tmp_path: Path) -> None:
    write_fake_run(tmp_path, "dpo", pairs=20, objective="dpo")
    app = opened("views/runs.py", root=tmp_path, curves="Routing")
    titles = app.get("plotly_chart")[0].proto.spec
    assert "mean weight w" in titles
    assert "correction strength" not in titles
    assert "this run reversed nothing" in said(opened("views/pairs.py", root=tmp_path))
    assert "Trained with DPO" in said(opened("views/routing.py", root=tmp_path))


def test_losses_of_different_objectives_are_drawn_apart(opened: Opened, tmp_path: Path) -> None:
    for number, objective in enumerate(("plc", "dpo")):
        write_fake_run(tmp_path, objective, pairs=40, seed=number, objective=objective)
    app = opened("views/runs.py", root=tmp_path, run=["plc", "dpo"])
    panels = [
        a["text"]
        for a in json.loads(app.get("plotly_chart")[0].proto.spec)["layout"]["annotations"]
    ]
    assert panels == ["accuracy (m > 0)", "mean margin m", "spread of m", "loss, plc", "loss, dpo"]
    assert "Losses of different objectives are not comparable" in said(app)
    app = opened("views/runs.py", root=tmp_path, run=["plc", "dpo"], show="Numbers", baseline="dpo")
    table = table_with(app, "loss, plc").set_index("run")
    assert pd.isna(table.loc["plc", "loss, dpo"]) and "Δ loss, plc" not in table
    assert "Δ accuracy" in table


def test_twelve_runs_are_overlaid_with_one_pinned(opened: Opened, tmp_path: Path) -> None:
    names = [f"run-{number:02d}" for number in range(12)]
    for number, name in enumerate(names):
        write_fake_run(tmp_path, name, pairs=20, seed=number)
    app = opened("views/runs.py", root=tmp_path, run=names, baseline="run-03")
    spec = json.loads(app.get("plotly_chart")[0].proto.spec)
    drawn = [trace["name"] for trace in spec["data"] if trace.get("showlegend")]
    assert sorted(drawn) == sorted({*names, "run-03 (baseline)"} - {"run-03"})
    looks = {(t["line"]["color"], t["line"]["dash"]) for t in spec["data"]}
    assert len(looks) == 12
    app.segmented_control[0].set_value("Numbers").run()
    table = app.dataframe[-1].value.set_index("run")
    assert table.loc["run-03", "Δ loss"] == "0"
    assert table.loc["run-07", "loss"].startswith("0.")


def test_the_command_makes_the_run_again(opened: Opened, runs: Path) -> None:
    app = opened("views/runs.py", run="other", show="Run again")
    command = next(code.value for code in app.code if "plc_core.batch" in code.value)
    words = shlex.split(command)
    assert words[:4] == [".venv/bin/python", "-m", "plc_core.batch", "notebooks/01_train.ipynb"]
    options = batch._arguments().parse_args(words[3:])
    given = {name: batch._value(name, text) for name, text in options.p}
    assert given["name"] == "other-again"
    assert given["runs_dir"] == str(runs)
    again = notebook_values(ROOT / "notebooks" / "01_train.ipynb", given)
    config = open_run(runs / "other").info["config"]
    where = {"name", "runs_dir", "resume"}
    assert {k: v for k, v in again.items() if k not in where} == {
        k: v for k, v in config.items() if k not in where
    }


def test_routing_counts_what_the_audit_counts(opened: Opened, runs: Path) -> None:
    run = open_run(runs / "good")
    last = audit.join_last_visits(run.visits(), run.pairs())
    shown = {metric.label: metric.value for metric in opened("views/routing.py", run="good").metric}
    assert shown["pairs visited"] == "200 of 200"
    for state in ("clean", "flip", "tie"):
        mean = last[f"q_{state}"].astype("float64").mean()
        assert shown[f"mean q\\_{state}"] == f"{mean:.3f}"


def test_the_noise_of_the_data_is_told_where_it_is_known(opened: Opened, tmp_path: Path) -> None:
    tile = "reversed labels, estimate"

    def tiles(app: AppTest) -> dict[str, str]:
        return {metric.label: metric.value for metric in app.metric}

    app = opened("views/routing.py", run="good")
    assert r"**27.0%** \[21.0%, 33.0%\]" in said(app)
    assert tiles(app)[tile] == "27 % [21, 33]"
    assert tile not in tiles(opened("views/routing.py", run="other"))
    path = write_fake_run(tmp_path, "early", pairs=40)
    table = pd.read_parquet(path / "metrics.parquet")
    unknown = dict.fromkeys(("noise_rate", "noise_low", "noise_high"), float("nan"))
    rewrite(path / "metrics.parquet", table.assign(**unknown))
    assert tiles(opened("views/routing.py", root=tmp_path, run="early"))[tile] == "not known yet"
    assert "share of reversed labels" not in said(opened("views/routing.py", run="other"))
    assert "p_flip" in opened("views/pairs.py", run="good").dataframe[0].value
    assert "p_flip, first visit" in said(opened("views/pairs.py", run="good"))
    assert "p_flip" not in opened("views/pairs.py", run="other").dataframe[0].value


def test_pairs_without_a_p_flip_come_last_and_are_blank(opened: Opened, runs: Path) -> None:
    first = pd.concat(map(pd.read_parquet, (runs / "good" / "visits").iterdir()))
    early = set(first.loc[first["step"] < P_FLIP_FROM, "pair_id"])
    assert 0 < len(early) < 200
    for end in ("0", "1"):
        link = {"run": "good", "sort": "p_flip", "rising": end}
        ids = opened("views/pairs.py", **link).dataframe[0].value["pair_id"]
        assert not early & set(ids)
        table = opened("views/pairs.py", page="13", **link).dataframe[0].value
        assert set(table["pair_id"]) <= early
        assert table.get("p_flip", pd.Series(dtype=float)).isna().all()
    assert "p_flip, first visit" not in said(opened("views/pairs.py", run="good", pair=min(early)))


def test_routing_of_a_run_that_reverses_nothing_looks_like_it(
    opened: Opened, tmp_path: Path
) -> None:
    write_fake_run(tmp_path, "dpo", pairs=40, objective="dpo")
    write_fake_run(tmp_path, "plc", pairs=40, objective="plc")
    for run, is_shadow in (("dpo", True), ("plc", False)):
        app = opened("views/routing.py", root=tmp_path, run=run)
        labels = [metric.label for metric in app.metric]
        assert ("loss that would be reversed" in labels) == is_shadow
        assert ("loss taken reversed" in labels) != is_shadow
        assert ("which reverses nothing" in said(app)) == is_shadow
        assert ("Shadow routing" in said(app)) == is_shadow
        charts = [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]
        hatched = [
            trace.get("marker", {}).get("pattern", {}).get("shape")
            or trace.get("fillpattern", {}).get("shape")
            for chart in charts
            for trace in chart["data"]
        ]
        assert (hatched.count("/") == 4) == is_shadow
        assert ("would be reversed" in said(opened("views/pairs.py", root=tmp_path, run=run))) == (
            is_shadow
        )


def test_a_click_on_a_point_opens_its_pair(opened: Opened, runs: Path) -> None:
    pair = first_pair(runs, "good", 5)
    app = opened("views/routing.py", run="good")
    app.session_state["chosen_pair"] = [pair]
    app.session_state["go_to_pair"] = True
    app.run()
    assert not app.exception
    assert shown_pair(app) == pair


def test_pairs_are_filtered_and_sorted(opened: Opened) -> None:
    app = opened("views/pairs.py", run="good", truth="1")
    assert app.dataframe[0].value["correction"].is_monotonic_decreasing
    app.selectbox(key="kept_sort").set_value("q_flip").run()
    assert app.dataframe[0].value["q_flip"].is_monotonic_decreasing
    app.selectbox(key="kept_label").set_value("swapped").run()
    assert app.dataframe[0].value["flipped"].all()
    app.multiselect(key="kept_range").set_value(["q_tie"]).run()
    app.number_input(key="low_q_tie").set_value(0.05).run()
    app.toggle(key="kept_rising").set_value(True).run()
    view = app.dataframe[0].value
    assert view["q_flip"].is_monotonic_increasing
    assert view["q_tie"].min() >= 0.05
    assert 0 < len(view) <= 16
    app.number_input(key="low_q_tie").set_value(0.99).run()
    assert "No pair matches" in said(app)


def test_a_pair_that_was_visited_once_has_no_path_over_training(
    opened: Opened, tmp_path: Path
) -> None:
    for name, epochs in (("once", 1), ("thrice", 3)):
        write_fake_run(tmp_path, name, pairs=20, epochs=epochs)
    once = said(opened("views/pairs.py", root=tmp_path, run="once"))
    assert "visited once, at step" in once and "**Over training**" not in once
    thrice = said(opened("views/pairs.py", root=tmp_path, run="thrice"))
    assert "visited once" not in thrice and "**Over training**" in thrice


def test_a_link_opens_the_same_view(opened: Opened, runs: Path) -> None:
    app = opened("views/pairs.py", run="good")
    app.selectbox(key="kept_sort").set_value("z").run()
    app.toggle(key="kept_rising").set_value(True).run()
    app.text_input(key="kept_q").set_value("kettle 1").run()
    app.multiselect(key="kept_range").set_value(["q_tie"]).run()
    app.number_input(key="low_q_tie").set_value(0.01).run()
    pair = app.dataframe[0].value["pair_id"].iloc[3]
    link = dict(app.query_params) | {"pair": pair}
    again = opened("views/pairs.py", **link)
    assert again.dataframe[0].value.equals(app.dataframe[0].value)
    assert shown_pair(again) == pair
    assert dict(again.query_params) == link
    assert again.toggle(key="kept_rising").value


def test_a_digest_that_another_inspector_forgot_is_made_again(opened: Opened, runs: Path) -> None:
    before = opened("views/pairs.py", run="good").dataframe[0].value
    digest = kept(open_run(runs / "good"))
    assert digest is not None
    shutil.rmtree(digest.folder.parent)
    assert opened("views/pairs.py", run="good").dataframe[0].value.equals(before)


def test_nonsense_in_a_link_is_ignored(opened: Opened) -> None:
    plain_view = opened("views/pairs.py", run="good").dataframe[0].value
    odd = {"sort": "z; DROP", "rising": "maybe", "page": "-3", "label": "<b>", "source": "none"}
    odd |= {"range": ["q_flip", "nothing"], "in_q_flip": "nan~", "decision": "destroy"}
    app = opened("views/pairs.py", run="good", **odd)
    assert app.dataframe[0].value.equals(plain_view)


def test_long_lists_have_pages(opened: Opened, tmp_path: Path) -> None:
    write_huge_run(tmp_path, "long", pairs=1_200, epochs=2, sentences=2)
    app = opened("views/pairs.py", root=tmp_path, run="long", page="3")
    assert len(app.dataframe[0].value) == 16
    assert "1,200 of 1,200 pairs" in said(app).replace("\\", "")
    assert "page 3 of 75" in said(app).replace("\\", "")
    first = app.dataframe[0].value["pair_id"].iloc[0]
    assert shown_pair(app) == first
    told = read_by(app)
    place = told["ids"].index(first)
    assert (told["first"] + place, told["total"]) == (32, 1_200)
    press(app, {"kind": "go", "to": told["ids"][place - 1]})
    assert app.number_input(key="kept_page").value == 2
    assert shown_pair(app) == told["ids"][place - 1]
    press(app, {"kind": "go", "to": first})
    assert shown_pair(app) == first
    for page in PAGES[:-1]:
        app.switch_page(page).run()
        assert not app.exception
        assert not app.warning


def test_decisions_are_saved_at_once_and_exported(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "run", pairs=20)
    before = files_of(path)
    pair = first_pair(tmp_path, "run", 4)
    app = opened("views/pairs.py", root=tmp_path, run="run", pair=pair)
    press(app, decision(pair, "flip"))
    assert read_decisions(open_run(path))[pair].decision == "flip"
    app.text_input(key=f"note_run_{pair}").set_value("a <b>note</b>").run()
    assert read_decisions(open_run(path))[pair].note == "a <b>note</b>"
    assert app.dataframe[0].value.set_index("pair_id")["decision"][pair] == "flip"
    app.selectbox(key="kept_decision").set_value("undecided").run()
    assert "19 of 20 pairs" in said(app)
    app.selectbox(key="kept_decision").set_value("flip").run()
    assert app.dataframe[0].value["pair_id"].tolist() == [pair]
    app.button(key="export_go").click().run()
    written = "".join(element.value for element in app.success)
    pairs = pd.read_parquet(path / "pairs.parquet").set_index("pair_id")
    assert "flip 1" in written
    assert f"Injected flips undone: {pairs['flipped'].drop(pair).sum()}." in written
    assert "injected flips are undone" in said(app)
    assert len(load_pairs(path / "decisions" / "cleaned.parquet")) == 20
    press(app, decision(pair, None))
    assert read_decisions(open_run(path))[pair].decision is None
    app.selectbox(key="kept_decision").set_value("undecided").run()
    assert "20 of 20 pairs" in said(app)
    assert app.dataframe[0].value.set_index("pair_id")["decision"][pair] == "note"
    app.text_input(key=f"note_run_{pair}").set_value("").run()
    assert "decision" not in app.dataframe[0].value
    app.selectbox(key="kept_decision").set_value("decided").run()
    assert "No pair matches" in said(app)
    assert all(name.startswith("decisions/") for name in files_of(path) - before)


def test_a_broken_file_of_decisions_hides_nothing_and_stays(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "run", pairs=20)
    (path / "decisions").mkdir()
    (path / "decisions" / "decisions.jsonl").write_text("half")
    pair = first_pair(tmp_path, "run")
    app = opened("views/pairs.py", root=tmp_path, run="run", pair=pair)
    assert "is damaged or no decision" in said(app)
    assert "20 of 20 pairs" in said(app)
    press(app, decision(pair, "keep", first_pair(tmp_path, "run", 1)))
    assert shown_pair(app) == pair
    assert "was not saved" in "".join(element.value for element in app.error)
    assert (path / "decisions" / "decisions.jsonl").read_text() == "half"


def test_a_run_deleted_while_it_is_open_is_told(opened: Opened, tmp_path: Path) -> None:
    write_fake_run(tmp_path, "stays", pairs=20, seed=1)
    path = write_fake_run(tmp_path, "goes", pairs=20, seed=2)
    app = opened("views/pairs.py", root=tmp_path, run="goes")
    shutil.rmtree(path)
    for page in OF_ONE_RUN:
        app.switch_page(page).run()
        assert not app.exception
        assert "There is no run folder" in said(app).replace("\\", "")
    app.selectbox(key="run_picker").set_value("stays").run()
    assert app.get("plotly_chart")


def test_a_long_answer_is_cut_until_asked_for(opened: Opened, tmp_path: Path) -> None:
    million = "<b>&amp; $x$ " * 80_000
    path = write_fake_run(tmp_path, "long", pairs=20, texts=((million, "short"),))
    pair = first_pair(path.parent, "long")
    app = opened("views/pairs.py", root=tmp_path, run="long", pair=pair)
    html = shown_html(app)
    assert "1,020,000 more characters" in html
    app.toggle(key="whole_texts").set_value(True).run()
    html = shown_html(app)
    assert html.count("&lt;b&gt;&amp;amp; $x$") == 80_000


def test_no_text_but_the_beginning_of_prompts_reaches_the_table(opened: Opened) -> None:
    table = opened("views/pairs.py", run="good").dataframe[0].value
    assert not set(table) & {"chosen", "rejected", "metadata"}
    assert table["prompt"].str.startswith("describe kettle").all()
    assert table["prompt"].str.len().max() <= SNIPPET


def test_the_pair_in_the_link_is_shown_and_kept(opened: Opened, runs: Path) -> None:
    pair = first_pair(runs, "good", 7)
    app = opened("views/pairs.py", run="good", pair=pair)
    assert shown_pair(app) == pair
    assert "answer 7" in said(app)
    app.switch_page("views/ties.py").run()
    app.switch_page("views/pairs.py").run()
    assert not app.exception
    assert shown_pair(app) == pair
    assert app.selectbox(key="run_picker").value == "good"


def test_filters_survive_a_page_switch(opened: Opened) -> None:
    app = opened("views/pairs.py", run="good")
    app.selectbox(key="kept_sort").set_value("margin").run()
    app.switch_page("views/ties.py").run()
    app.switch_page("views/pairs.py").run()
    assert app.selectbox(key="kept_sort").value == "margin"
    assert app.query_params["sort"] == "margin"


def test_an_unknown_pair_is_named_and_nothing_can_be_decided(opened: Opened) -> None:
    app = opened("views/pairs.py", run="good", pair="<b>$x$")
    assert r"This run has no pair \<b\>\$x\$" in said(app)
    assert read_by(app)["current"] is None


def test_nothing_can_be_decided_while_no_pair_is_listed(opened: Opened, runs: Path) -> None:
    pair = first_pair(runs, "good", 3)
    app = opened("views/pairs.py", run="good", pair=pair)
    assert read_by(app)["current"] == pair
    app.text_input(key="kept_q").set_value("in no text at all").run()
    assert "No pair matches" in said(app)
    told = read_by(app)
    assert (told["current"], told["nothing"]) == (None, "No pair is left to show.")
    assert next(b for b in app.button if b.key.startswith("bulk_go")).disabled
    app.text_input(key="kept_q").set_value("").run()
    assert shown_pair(app) == pair


def test_what_was_typed_while_the_page_was_drawn_belongs_to_its_pairs(
    opened: Opened, tmp_path: Path
) -> None:
    paths = {name: write_fake_run(tmp_path, name, pairs=20, seed=n) for n, name in enumerate("ab")}
    app = opened("views/pairs.py", root=tmp_path, run="a")
    one, two, three, four = read_by(app)["ids"][:4]
    typed = [
        decision(one, "flip", two),
        decision(two, "drop", three),
        decision(three, "keep", four),
    ]
    press(app, *typed)
    made = read_decisions(open_run(paths["a"]))
    assert {i: made[i].decision for i in made} == {one: "flip", two: "drop", three: "keep"}
    told = read_by(app)
    assert (told["current"], told["decided"][two], told["progress"]) == (four, "drop", [3, 20])
    # The browser sends again what it has not heard of yet: each thing is done once.
    again = [entry | {"seq": n} for n, entry in enumerate(typed, start=1)]
    press(app, *again, decision(four, "tie") | {"seq": 4})
    assert [d.decision for d in read_decisions(open_run(paths["a"])).values()][-1] == "tie"
    assert len((paths["a"] / "decisions" / "decisions.jsonl").read_text().splitlines()) == 4
    # Another run was opened meanwhile: the key stays with its own.
    app.selectbox(key="run_picker").set_value("b").run()
    shown = shown_pair(app)
    press(app, decision(one, "drop", two) | {"run": "a"})
    assert read_decisions(open_run(paths["a"]))[one].decision == "drop"
    assert not read_decisions(open_run(paths["b"]))
    assert shown_pair(app) == shown
    press(app, decision(one, "drop") | {"run": "../b"})
    assert "was not saved" in "".join(element.value for element in app.error)


def test_decisions_are_taken_back_and_undone_one_by_one(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "run", pairs=20)
    app = opened("views/pairs.py", root=tmp_path, run="run")
    assert "the same key again takes a decision back" in said(app)
    assert not read_by(app)["undoable"]
    one, two, three = read_by(app)["ids"][:3]
    press(app, decision(one, "tie", two), decision(two, "flip", three))
    assert not app.toast
    press(app, decision(one, None))
    assert [toast.value for toast in app.toast] == ["Taken back: tie. The pair is undecided again."]
    assert set(read_decisions(open_run(path))) == {two}
    for left, there in (({one, two}, one), ({one}, two), (set(), one)):
        press(app, {"kind": "undo"})
        assert set(read_decisions(open_run(path))) == left
        assert shown_pair(app) == there
    assert not read_by(app)["undoable"]


def test_one_decision_on_all_that_a_filter_lets_through(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "run", pairs=60)
    swapped = pd.read_parquet(path / "pairs.parquet").query("flipped")["pair_id"].tolist()
    app = opened("views/pairs.py", root=tmp_path, run="run", label="swapped")
    press(app, decision(swapped[0], "keep"))
    app.radio(key="bulk_decision").set_value("flip").run()
    go = next(button for button in app.button if button.key.startswith("bulk_go"))
    assert go.label == f"Flip {len(swapped) - 1} pairs"
    assert "1 is decided already" in said(app)
    go.click().run()
    made = read_decisions(open_run(path))
    assert {i: made[i].decision for i in made} == dict.fromkeys(swapped, "flip") | {
        swapped[0]: "keep"
    }
    assert read_by(app)["progress"] == [len(swapped), len(swapped)]
    press(app, {"kind": "undo"})
    assert set(read_decisions(open_run(path))) == {swapped[0]}


def test_the_list_turns_to_the_pair_of_a_link(opened: Opened, runs: Path) -> None:
    ids = opened("views/pairs.py", run="good", sort="z", page="5").dataframe[0].value["pair_id"]
    app = opened("views/pairs.py", run="good", sort="z", pair=ids[7])
    assert app.number_input(key="kept_page").value == 5
    assert app.dataframe[0].value["pair_id"].tolist() == ids.tolist()
    app.number_input(key="kept_page").set_value(2).run()
    assert shown_pair(app) == ids[7]
    link = dict(app.query_params)
    assert opened("views/pairs.py", **link).number_input(key="kept_page").value == 2


def test_a_page_that_the_list_lacks_leaves_the_address(opened: Opened) -> None:
    app = opened("views/pairs.py", run="good", page="99")
    assert app.number_input(key="kept_page").value == 1
    assert "page" not in app.query_params


def test_a_large_run_is_read_while_its_page_shows_what_is_known(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_fake_run(tmp_path, "large", pairs=60)
    app = opened(PAGES[0], root=tmp_path, run="large")
    monkeypatch.setattr(sys.modules["reading"], "AT_ONCE", 0)
    for page in OF_ONE_RUN:
        app.switch_page(page).run()
        if "opened for the first time" in said(app):
            assert len(app.get("plotly_chart")) == 1
            assert not app.get("dataframe")
            assert prepare(open_run(path)).ended.wait()
            app.run()
        assert not app.exception
        assert "opened for the first time" not in said(app)
        assert "cannot be shown" not in said(app)
    assert kept(open_run(path)) is not None


def test_a_large_run_that_cannot_be_read_says_why(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_fake_run(tmp_path, "large", pairs=60)
    next((path / "visits").iterdir()).write_bytes(b"PAR1 cut")
    app = opened(PAGES[0], root=tmp_path, run="large")
    monkeypatch.setattr(sys.modules["reading"], "AT_ONCE", 0)
    assert prepare(open_run(path)).ended.wait()
    for page in OF_ONE_RUN:
        app.switch_page(page).run()
        assert "is cut short or no Parquet file" in said(app).replace("\\", "")


def test_odd_texts_are_shown_literally(opened: Opened, runs: Path) -> None:
    app = opened("views/pairs.py", run="nasty")
    for place in range(len(NASTY_TEXTS)):
        app.session_state["chosen_pair"] = [first_pair(runs, "nasty", place)]
        app.query_params["pair"] = [first_pair(runs, "nasty", place)]
        app.run()
        assert not app.exception
        shown = "".join(e.proto.body for e in app.get("html"))
        assert "<script" not in shown
        assert "<img" not in shown
        assert "\0" not in shown


def test_unseen_characters_are_shown_by_their_codes() -> None:
    chosen, rejected, *_ = marked("a\0 \ud800 \u202eb\r\n", "<i>&amp;")
    for code in (r"\x00", r"\ud800", r"\u202e", r"\r"):
        assert f">{code}</span>" in chosen
    assert "&lt;i&gt;&amp;amp;" in rejected
    assert plain("# *a*\n$b$ :c: \0") == r"\# \*a\* \$b\$ \:c\: \\x00"


def test_only_differing_words_are_marked() -> None:
    chosen, rejected, note, _ = marked("the red\n  kettle", "the blue\n  kettle")
    assert note == "Marked: words that differ."
    assert ">the <mark>red</mark>\n  kettle<" in chosen
    assert ">the <mark>blue</mark>\n  kettle<" in rejected
    assert "<mark>" not in marked("same text", "same text")[0]
    assert "<mark>" not in marked("word " * 2000, "x")[0]
    assert "(missing)" in marked(None, "x")[0]


def test_why_nothing_is_marked_is_said() -> None:
    apart = marked("one two three the four five", "six the seven eight nine ten")
    assert "<mark>" not in apart.chosen + apart.rejected
    assert "less than 30 % are shared" in apart.note
    assert "above 1,500 words" in marked("word " * 2000, "x").note
    assert "One answer is empty" in marked("", "x").note


def test_ties_shows_the_numbers_of_the_audit(opened: Opened, runs: Path) -> None:
    run = open_run(runs / "good")
    expected = audit.tie_selectivity(run.visits(), run.pairs())
    app = opened("views/ties.py", run="good")
    slices, tests = (element.value for element in app.dataframe)
    assert slices["q_tie_mean"].tolist() == expected.slices["q_tie_mean"].tolist()
    assert tests["rank-biserial r"].tolist() == expected.tests["rank_biserial"].tolist()


def test_ties_compares_within_one_source(opened: Opened) -> None:
    app = opened("views/ties.py", run="other")
    assert app.selectbox(key="kept_tie_source").options == ["one", "two"]
    app.selectbox(key="kept_tie_source").set_value("two").run()
    assert app.dataframe[0].value["n"].tolist() == [20, 20]


def test_pairs_without_scores_have_no_gap(opened: Opened) -> None:
    assert "carry no scores" in said(opened("views/ties.py", run="nasty"))


def test_a_run_without_visits_or_metrics_opens(opened: Opened, tmp_path: Path) -> None:
    path = still_training(write_fake_run(tmp_path, "early", pairs=20))
    for file in [path / "metrics.parquet", *(path / "visits").iterdir()]:
        file.unlink()
    for page in ("views/routing.py", "views/ties.py", "views/corruption.py"):
        assert "been visited yet" in said(opened(page, root=tmp_path, run="early"))
    chart = opened("views/runs.py", root=tmp_path, run="early").get("plotly_chart")[0]
    assert "No optimizer step has been logged yet" in chart.proto.spec
    assert "20 of 20 pairs" in said(opened("views/pairs.py", root=tmp_path, run="early"))
    (path / "pairs.parquet").unlink()
    for page in OF_ONE_RUN:
        assert "no pairs\\.parquet yet" in said(opened(page, root=tmp_path, run="early"))


def test_damaged_files_are_named(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "damaged", pairs=20)
    (path / "pairs.parquet").write_bytes(b"PAR1 no")
    (path / "metrics.parquet").write_bytes(b"")
    for page in PAGES[:-1]:
        told = said(opened(page, root=tmp_path, run="damaged"))
        assert "is cut short or no Parquet file" in told
        for word in ("magic", "Invalid Input", "Arrow", "Error:", "Traceback"):
            assert word not in told
    app = opened(PAGES[0], root=tmp_path, run="damaged")
    assert not app.get("plotly_chart")  # "no step yet" would be said of what cannot be read
    assert not opened(PAGES[0], root=tmp_path, run="damaged", show="Numbers").dataframe[1:]


def test_a_file_that_is_damaged_while_others_are_whole(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "damaged", pairs=200, epochs=3)
    next((path / "visits").iterdir()).write_bytes(b"PAR1 half")
    app = opened("views/routing.py", root=tmp_path, run="damaged")
    assert "is cut short or no Parquet file" in said(app)
    assert opened("views/runs.py", root=tmp_path, run="damaged").get("plotly_chart")


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("pairs.parquet", "pairs.parquet is cut short"),
        ("metrics.parquet", "metrics.parquet is cut short"),
        ("visits", "visits/"),
        ("gone", "has no metrics.parquet and no pairs.parquet"),
    ],
)
def test_the_list_marks_runs_whose_files_are_damaged(
    opened: Opened, tmp_path: Path, file: str, sentence: str
) -> None:
    write_fake_run(tmp_path, "whole", pairs=40, seed=1)
    path = write_fake_run(tmp_path, "broken", pairs=40)
    assert set(opened(PAGES[0], root=tmp_path, run="whole").dataframe[0].value["state"]) == {"done"}
    if file == "gone":
        (path / "pairs.parquet").unlink()
        (path / "metrics.parquet").unlink()
    else:
        place = path / file if file != "visits" else next((path / "visits").iterdir())
        content = place.read_bytes()
        place.unlink()
        place.write_bytes(content[:-20])
    app = opened(PAGES[0], root=tmp_path, run="whole")
    table = app.dataframe[0].value.set_index("run")
    assert table["state"].to_dict() == {"whole": "done", "broken": "damaged"}
    assert sentence in table.loc["broken", "remark"]
    assert table.loc["whole", "remark"] == ""
    assert sentence in said(opened(PAGES[0], root=tmp_path, run="broken")).replace("\\", "")


def test_the_list_sees_when_a_file_was_written_to_its_end(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "live", pairs=20, state="running")
    file = next((path / "visits").iterdir())
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    app = opened(PAGES[0], root=tmp_path, run="live")
    assert "is cut short" in said(app)
    file.write_bytes(whole)
    app.run()
    assert "is cut short" not in said(app)


def test_the_list_says_why_results_are_blank(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "run", pairs=40)
    write_fake_answers(path, kl=1.0)
    file = path / "judgements" / "gold-world.parquet"
    whole = pd.read_parquet(file)
    rewrite(file, whole.iloc[::2])  # as of an evaluation of fewer prompts
    app = opened(PAGES[0], root=tmp_path, run="run")
    assert "earlier copy" in app.dataframe[0].value["remark"].iloc[0]
    assert "earlier copy" in said(app)
    rewrite(file, whole)
    app.run()
    assert "remark" not in app.dataframe[0].value and "earlier copy" not in said(app)


def test_metrics_that_are_gone_are_told_where_they_are_needed(
    opened: Opened, tmp_path: Path
) -> None:
    path = write_fake_run(tmp_path, "run", pairs=40)
    (path / "metrics.parquet").unlink()
    for page in ("views/routing.py", "views/verdict.py", PAGES[0]):
        app = opened(page, root=tmp_path, run="run")
        assert "metrics.parquet is missing" in said(app).replace("\\", ""), page
        if page == "views/routing.py":
            assert len(app.metric) > 4 and len(app.get("plotly_chart")) >= 4


def test_numbers_that_are_not_there_are_no_error(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "nan", pairs=40, epochs=2)
    for file in (path / "visits").iterdir():
        table = pd.read_parquet(file)
        routed = ["z", "q_clean", "q_flip", "q_tie", "confidence", "weight"]
        table.loc[::2, routed] = float("nan")
        write_table(file, pa.Table.from_pandas(table, preserve_index=False))
    app = opened("views/runs.py", root=tmp_path, run="nan")
    for page in PAGES[:-1]:
        app.switch_page(page).run()
        assert not app.exception
        assert "cannot be shown" not in said(app)


def test_answers_that_are_messages_are_shown_as_their_last_turn(
    opened: Opened, tmp_path: Path
) -> None:
    path = write_fake_run(tmp_path, "messages", pairs=20)
    table = pq.read_table(path / "pairs.parquet")
    turns = [[{"role": "user", "content": "q"}, {"role": "assistant", "content": "<b>said</b>"}]]
    table = table.set_column(table.column_names.index("chosen"), "chosen", pa.array(turns * 20))
    rewrite(path / "pairs.parquet", table)
    app = opened("views/pairs.py", root=tmp_path, run="messages")
    assert "&lt;b&gt;said&lt;/b&gt;" in said(app).replace("<mark>", "").replace("</mark>", "")


def test_files_beside_a_run_that_are_not_its_own_hide_nothing(
    opened: Opened, tmp_path: Path
) -> None:
    path = write_fake_run(tmp_path, "run", pairs=40, votes=True, ties=4)
    (path / "scores").mkdir()
    write_table(path / "scores" / "half.parquet", pa.table({"group": ["unanimous"]}))
    (path / "scores" / "none.parquet").write_text("none")
    write_table(path / "findings.parquet", pa.table({"rule": ["long"]}))
    people = opened("views/human_disagreement.py", root=tmp_path, run="run")
    ties = opened("views/ties.py", root=tmp_path, run="run")
    for app in (people, ties):
        assert "lacks the column(s) calibration" in said(app).replace("\\", "")
        assert "none.parquet cannot be read" in said(app).replace("\\", "")
        assert len(app.get("plotly_chart")) >= 2
    assert "unanimous" in said(people)
    pair = opened("views/pairs.py", root=tmp_path, run="run")
    assert "findings.parquet cannot be read" in said(pair).replace("\\", "")
    # Where it stands on the run's curves; its course is one visit, and a sentence.
    assert len(pair.get("plotly_chart")) == 1


def test_a_run_with_hardly_a_measure_can_be_tested(opened: Opened, tmp_path: Path) -> None:
    path = still_training(write_fake_run(tmp_path, "bare", pairs=20, scores=False))
    shutil.rmtree(path / "visits")
    app = opened("views/tests.py", root=tmp_path, run="bare")
    assert "No correlation of visits with last step can be computed" in said(app)
    assert "cannot be shown" not in said(app)


def test_missing_columns_are_named_or_left_out(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "sparse", pairs=20)
    for name, drop in (("pairs", ["flipped", "oracle_state", "source"]), ("metrics", ["gamma"])):
        table = pd.read_parquet(path / f"{name}.parquet").drop(columns=drop)
        rewrite(path / f"{name}.parquet", table)
    assert opened("views/pairs.py", root=tmp_path, run="sparse").dataframe
    assert "lacks the column" in said(opened("views/ties.py", root=tmp_path, run="sparse"))
    assert "No label of this run is known to be reversed" in said(
        opened("views/corruption.py", root=tmp_path, run="sparse")
    )
    assert opened("views/runs.py", root=tmp_path, run="sparse").get("plotly_chart")


def test_the_app_needs_no_torch() -> None:
    script = (
        "import sys; sys.path.insert(0, 'app'); import reading, rerun_box, pair_view, reader;"
        "import plc_core.evaluation.sides, plc_core.evaluation.win_tables;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


def test_people_shows_the_numbers_of_the_study(opened: Opened, runs: Path) -> None:
    run = open_run(runs / "good")
    table = audit.join_last_visits(run.visits(), run.pairs())
    votes = pd.read_parquet(run.path / "pairs.parquet", columns=["votes"])["votes"]
    expected = agreement(table.assign(group=[vote_group(list(own)) for own in votes]))
    app = opened("views/human_disagreement.py", run="good")
    assert plain(agreement_sentence(expected, "good")) in said(app)
    shown = app.dataframe[0].value
    assert (
        shown["mean q_tie"].tolist()
        == agreement_shown({("good", ""): expected})["mean q_tie"].tolist()
    )


def test_corruption_shows_the_numbers_of_audit_and_study(opened: Opened, runs: Path) -> None:
    run = open_run(runs / "good")
    visits, pairs = run.visits(), run.pairs()
    app = opened("views/corruption.py", run="good")
    for row in audit.flip_ranking(visits, pairs).itertuples():
        assert row.text in said(app)
    assert str(audit.flip_calibration(visits, pairs)) in said(app)
    expected = hard_pairs_shown(hard_pair_table({"plc": {0.3: [run]}})).reset_index()
    assert app.dataframe[-1].value.astype(str).equals(expected.astype(str))


def test_corruption_says_what_reversed_is_wherever_it_counts(opened: Opened, runs: Path) -> None:
    states = open_run(runs / "good").pairs()["oracle_state"]
    of_two = (states == "flip").sum() / states.isin(["flip", "clean"]).sum()
    told = said(opened("views/corruption.py", run="good"))
    assert "**Reversed** is the true state flip, marked or not" in told
    assert f"true ties are left out ({of_two:.1%} of" in told
    assert f"they count as not reversed ({(states == 'flip').mean():.1%} of 200)" in told
    assert "The dose response below is over all visits, by the marker" in told
    told = said(opened("views/corruption.py", run="other"))
    assert "**Reversed** is the marker of injected flips" in told
    assert "true state flip" not in told


def test_the_dose_response_says_which_labels_were_reversed(opened: Opened, tmp_path: Path) -> None:
    write_fake_run(tmp_path, "random", pairs=40, seed=1)
    write_fake_run(tmp_path, "hard", pairs=40, seed=2, flips="largest-gap")
    app = opened("views/corruption.py", root=tmp_path, run="random")
    assert "Reversed: pairs drawn at random." in said(app)
    assert app.dataframe[-1].value["method"].tolist() == ["plc", "paper, Qwen2.5-7B"]
    app.multiselect(key="kept_dose").set_value(["random", "hard"]).run()
    methods = app.dataframe[-1].value["method"].tolist()
    assert methods[:2] == [
        "plc: pairs drawn at random",
        "plc: hard pairs, by the largest score gap",
    ]


def test_the_bench_reads_its_results_aloud(opened: Opened, runs: Path) -> None:
    run = open_run(runs / "good")
    last = audit.join_last_visits(run.visits(), run.pairs())
    test = mann_whitney(
        last.loc[last["flipped"], "q_flip"], last.loc[~last["flipped"], "q_flip"], "greater"
    )
    groups = {"a": "label swapped", "b": "label not swapped", "side": "greater"}
    app = opened("views/tests.py", run="good", measures="q_flip", **groups)
    aloud = read_aloud(test, "q_flip", *list(groups.values())[:2], adjusted=test.p)
    claim = aloud.split(", p = ")[0]
    assert "AUROC" in claim
    assert f"{plain(claim)}\\)\\." in said(app)
    app.selectbox(key="kept_b").set_value("all pairs").run()
    assert "are in both groups, and count in the smaller one only" in said(app)
    app.selectbox(key="kept_b").set_value("label swapped").run()
    assert "same group" in said(app)


def test_wins_are_those_of_the_evaluation_with_the_answers_behind_them(
    opened: Opened, tmp_path: Path
) -> None:
    for number, name in enumerate(("dpo", "plc")):
        path = write_fake_run(tmp_path, name, pairs=20, seed=number, objective=name)
        write_fake_answers(path, seed=number)
    paths = {name: open_run(tmp_path / name) for name in ("dpo", "plc")}
    cells = win_rate_cells(judged(paths, "gold-world"), "dpo", ("benchmark", "decoding"))
    link = {"against": "dpo", "won_by": ["dpo", "plc"], "method": "plc", "outcome": "win"}
    app = opened("views/wins.py", root=tmp_path, **link)
    shown = table_with(app, "win_rate")
    assert shown["win_rate"].tolist() == cells["win_rate"].tolist()
    won = cells[(cells["method"] == "plc") & (cells["decoding"] == "greedy")]["wins"].iloc[0]
    assert len(table_with(app, "outcome")) == won
    told = said(app)
    assert "plc answers as trained $x$ **b**" in told
    assert "prompt &lt;b&gt;" in told
    answers = tmp_path / "plc" / "generations" / "world.parquet"
    talk = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two <b>"}]
    talk.append({"role": "user", "content": '[{"role": "user"}]'})
    rewrite(answers, pd.read_parquet(answers).assign(conversation=json.dumps(talk)))
    told = said(opened("views/wins.py", root=tmp_path, **link))
    assert all(turn(one["role"], one["content"]) in told for one in talk)
    assert "&quot;content&quot;" not in told
    published = app.dataframe[-1].value.set_index("method")["among your runs"]
    assert published[published == "yes"].index.tolist() == ["PLC-DPO"]
    assert "No run has judged answers" in said(
        opened("views/wins.py", root=write_fake_run(tmp_path / "none", "run", pairs=20).parent)
    )


def test_win_rates_mark_only_what_an_interval_shows(opened: Opened, tmp_path: Path) -> None:
    runs = {
        "dpo": ("dpo", 1.0, 0.0), "far": ("dpo", 2.1, 0.3),
        "plc": ("plc", 2.0, 0.3), "best": ("plc", 9.0, 2.0),
    }  # fmt: skip
    for number, (name, (objective, kl, lead)) in enumerate(runs.items()):
        path = write_fake_run(tmp_path, name, pairs=20, seed=number, objective=objective)
        write_fake_answers(path, prompts=200, seed=number, kl=kl, lead=lead)
    app = opened(
        "views/wins.py", root=tmp_path, run="plc", against="dpo", won_by=["dpo", *list(runs)[1:]]
    )
    table = app.dataframe[0].value.set_index("method")
    assert table.index[0] == "dpo"
    assert set(table.loc["dpo"]) == {"50, the baseline"}
    cells = table_with(app, "win_rate").set_index(["method", "decoding"])
    for (method, decoding), cell in cells.iterrows():
        text = table.loc[method, decoding]
        assert text.endswith("▲") == (cell["low"] > 50)
        assert text.endswith("▼") == (cell["high"] < 50)
    assert table.loc["best", "greedy"].endswith("▲")
    assert not table.loc["reference", "greedy"].endswith("▲")
    controls = table_with(app, "KL control").set_index("method")
    assert controls.loc["plc", "KL control"].startswith("far, 2.10")
    against = win_rate_cells(
        judged({n: open_run(tmp_path / n) for n in ("plc", "far")}, "gold-world"),
        "far",
        ("benchmark", "decoding"),
    ).set_index(["method", "decoding"])
    rate = against.loc[("plc", "greedy"), "win_rate"]
    assert controls.loc["plc", "greedy"].startswith(f"{rate:.1f} [")
    assert (
        "none of these moved as far; far, the nearest: 2.10" in controls.loc["best", "KL control"]
    )
    app = opened("views/wins.py", root=tmp_path, run="plc", against="dpo", won_by=["dpo", "far"])
    assert not any("KL control" in table.value for table in app.dataframe)


def test_a_verdict_tells_no_difference_from_nothing_measured(
    opened: Opened, tmp_path: Path
) -> None:
    for number, (name, kl) in enumerate({"dpo": 2.1, "plc": 2.0, "far": 9.0}.items()):
        objective = "dpo" if name == "dpo" else "plc"
        path = write_fake_run(tmp_path, name, pairs=20, objective=objective)
        write_fake_answers(path, prompts=30, seed=number, kl=kl)
    beats_dpo = {
        "plc": '"v-said undecided">not shown',
        "far": '"v-said unknown">not known',
    }
    for run, words in beats_dpo.items():
        app = opened("views/verdict.py", root=tmp_path, run=run)
        told = said(app)
        answers = re.findall(r'class=("v-said \w+">[^<]*)', told)
        assert len(answers) == 5
        assert words in answers
        # How noisy the data are is estimated by each run on them from its own margins.
        others = "; ".join(f"{o} 27 % [21, 33]" for o in ("far", "plc", "dpo") if o != run)
        assert f"Other runs, same pairs: {others}" in told
        assert words_of(app) <= MOST_WORDS, prose(app.main)
    told = said(opened("views/verdict.py", root=tmp_path, run="dpo"))
    assert '"v-said unasked">does not apply' in told
    assert "asked of PLC-DPO runs; this one trained with DPO" in told


def test_a_run_stands_at_first_against_the_dpo_run_that_moved_as_far(
    opened: Opened, tmp_path: Path
) -> None:
    runs = {"control": ("dpo", 2.1), "dpo": ("dpo", 1.0), "plc": ("plc", 2.0), "best": ("plc", 9.0)}
    for number, (name, (objective, kl)) in enumerate(runs.items()):
        path = write_fake_run(tmp_path, name, pairs=20, objective=objective)
        write_fake_answers(path, prompts=30, seed=number, kl=kl)
    for run, baseline in (("plc", "control"), ("dpo", "control"), ("control", "control")):
        app = opened("views/wins.py", root=tmp_path, run=run)
        assert app.selectbox(key="kept_against").value == baseline
    # No DPO run moved as far as this one: any plain one.
    app = opened("views/wins.py", root=tmp_path, run="best")
    assert app.selectbox(key="kept_against").value in ("control", "dpo")


def test_win_rates_are_of_runs_that_answered_the_same_prompts(
    opened: Opened, tmp_path: Path
) -> None:
    names = {"dpo": 30, "plc": 30, "small": 12, "tiny": 12}
    for number, (name, prompts) in enumerate(names.items()):
        path = write_fake_run(
            tmp_path, name, pairs=20, seed=number, objective="dpo" if number % 2 else "plc"
        )
        write_fake_answers(path, prompts=prompts, seed=number)
    for run, others, n in (("plc", ["dpo", "plc"], 30), ("tiny", ["small", "tiny"], 12)):
        app = opened("views/wins.py", root=tmp_path, run=run)
        assert not [w.value for w in app.warning if "missing" in w.value]
        picker = app.multiselect(key="kept_won_by")
        assert sorted(picker.options) == others
        assert picker.value[0] == run
        assert f"{n} prompts" in said(app)
        cells = table_with(app, "wins")
        assert set(cells["n"]) == {n}
        assert "reference" in set(cells["method"])
        assert app.selectbox(key="kept_method").value != app.selectbox(key="kept_against").value


def test_win_rates_say_which_answers_were_left_out(opened: Opened, tmp_path: Path) -> None:
    for number, name in enumerate(("dpo", "plc")):
        path = write_fake_run(tmp_path, name, pairs=20, seed=number, objective=name)
        write_fake_answers(path, seed=number)
    file = tmp_path / "plc" / "judgements" / "gold-world.parquet"
    table = pd.read_parquet(file)
    trained = (table["policy"] == "trained") & (table["decoding"] == "greedy")
    table.loc[table.index[trained][:4], "reward"] = float("nan")
    rewrite(file, table)
    app = opened("views/wins.py", root=tmp_path, run="plc", against="dpo")
    told = [w.value for w in app.warning]
    assert any("plc\\, greedy" in text and "4 without a number" in text for text in told)
    cells = table_with(app, "wins").set_index(["method", "decoding"])["n"]
    assert cells["plc", "greedy"] == 26
    assert cells["plc", "sampled"] == 30


def test_a_run_that_may_not_be_read_leaves_the_others_on_the_pages(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("dpo", "plc", "closed")):
        path = write_fake_run(tmp_path, name, pairs=20, seed=number)
        write_fake_answers(path, seed=number)

    def closed(ask: Callable[[Path], bool]) -> Callable[[Path], bool]:
        def refused(path: Path) -> bool:
            if path.parent == tmp_path / "closed":  # as Python 3.11 does of a folder that is closed
                raise PermissionError(13, "Permission denied", str(path))
            return ask(path)

        return refused

    for name in ("is_dir", "is_file"):
        monkeypatch.setattr(Path, name, closed(getattr(Path, name)))
    app = opened("views/wins.py", root=tmp_path, run="plc")
    assert "closed cannot be shown here" in said(app)
    assert "Permission denied" in said(app)
    assert sorted(app.multiselect(key="kept_won_by").options) == ["dpo", "plc"]
    app = opened("views/runs.py", root=tmp_path)
    assert app.dataframe[0].value.set_index("run").loc["closed", "state"] == "unreadable"


def test_runs_of_other_data_are_told_beside_their_win_rates(opened: Opened, tmp_path: Path) -> None:
    for number, name in enumerate(("dpo", "plc")):
        path = write_fake_run(tmp_path, name, pairs=20, seed=number, objective=name)
        write_fake_answers(path, seed=number)
    info = json.loads((tmp_path / "dpo" / "run.json").read_text())
    change_json(tmp_path / "dpo" / "run.json", data=info["data"] | {"fingerprint": "another"})
    told = said(opened("views/wins.py", root=tmp_path, run="plc", won_by=["plc", "dpo"]))
    assert "trained on different data" in told


def test_what_is_known_of_a_label_is_hidden_from_who_judges_it(opened: Opened, runs: Path) -> None:
    app = opened("views/pairs.py", run="good")
    known = {"oracle_state", "flipped", "injected_tie"}
    assert not known & set(app.dataframe[0].value)
    shown = read_by(app)
    before, found, after = shown["pairs"][shown["current"]].partition("<details")
    assert found
    pair = open_run(runs / "good").pairs().set_index("pair_id").loc[shown["current"]]
    for words in ("true state", "label swapped"):
        assert words not in before
        assert words in after
    assert f"<b>{pair['oracle_state']}</b>" in after
    app.toggle(key="kept_truth").set_value(True).run()
    assert known <= set(app.dataframe[0].value)
    assert app.query_params["truth"] == "1"
    app = opened("views/pairs.py", run="nasty", truth="1")
    assert not known & {t.key for t in app.toggle}


def test_a_filter_of_the_pairs_is_a_group_of_a_test(opened: Opened, runs: Path) -> None:
    link = {"label": "swapped", "range": "z", "in_z": "-9.0~0.0", "truth": "1"}
    app = opened("views/pairs.py", run="good", **link)
    assert app.dataframe[0].value["flipped"].eq("swapped").all()
    app.toggle(key="kept_truth").set_value(False).run()
    app.text_input(key="group_name").set_value("low & swapped").run()
    app.button(key="save_group").click().run()
    app.button(key="clear").click().run()
    assert set(app.query_params) == {"run"}
    app.switch_page("views/tests.py").run()
    link = app.query_params["group"]
    for shown in (app, opened("views/tests.py", run="good", group=link)):
        shown.selectbox(key="kept_a").set_value("low & swapped").run()
        shown.selectbox(key="kept_b").set_value("label not swapped").run()
        table = shown.dataframe[0].value
        run = open_run(runs / "good")
        last = run.visits().drop_duplicates("pair_id", keep="last").merge(run.pairs(), on="pair_id")
        assert table["n A"].tolist()[0] == str((last["flipped"] & (last["z"] <= 0)).sum())


def test_the_list_leaves_out_what_is_the_same_of_all_pairs(opened: Opened) -> None:
    columns = list(opened("views/pairs.py", run="good").dataframe[0].value)
    assert columns[:4] == ["prompt", "correction", "q", "z"]
    assert columns[-1] == "pair_id"
    assert "source" not in columns and "visits" not in columns
    assert "source" in opened("views/pairs.py", run="other").dataframe[0].value

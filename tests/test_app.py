"""Every page on good, broken, live and failed runs and on texts that try to break out."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from app.marking import marked, plain
from plc_core.analysis import audit
from plc_core.files import write_json
from plc_core.runs import open_run
from tests.fake_run import (
    NASTY_TEXTS,
    change_json,
    write_broken_runs,
    write_fake_report,
    write_fake_run,
)
from tests.paths import ROOT

PAGES = tuple(f"views/{n}.py" for n in ("runs", "routing", "pairs", "ties", "people", "corruption", "tests", "wins"))
Opened = Callable[..., AppTest]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One runs directory with every kind of run, its odd texts included."""
    root = tmp_path_factory.mktemp("runs")
    write_fake_run(root, "good", seed=9)
    write_fake_run(root, "other", seed=1, epochs=2, oracle=False, sources=("one", "two"))
    write_fake_run(root, "live", seed=2, state="running")
    write_fake_run(root, "failed", seed=3, state="failed")
    write_fake_run(root, "nasty", seed=4, pairs=30, texts=NASTY_TEXTS, scores=False, oracle=False)
    write_broken_runs(root)
    return root


@pytest.fixture
def opened(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A function that opens the app at a page with a selection, and checks that nothing broke."""

    def at_page(page: str, *, root: Path = runs, **query: str | list[str]) -> AppTest:
        monkeypatch.setenv("PLC_RUNS", str(root))
        monkeypatch.setattr("sys.argv", ["inspector.py"])
        app = AppTest.from_file(ROOT / "app" / "inspector.py", default_timeout=30).run()
        for key, value in query.items():
            app.query_params[key] = value
        app.switch_page(page).run()
        assert not app.exception
        return app

    return at_page


def said(app: AppTest) -> str:
    """All plain texts on the page."""
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
    return "\n".join(str(element.value) for kind in kinds for element in app.get(kind)) + "\n".join(
        element.proto.body for element in app.get("html")
    )


def first_pair(root: Path, run: str, place: int = 0) -> str:
    """The id of a pair of the run."""
    return str(pd.read_parquet(root / run / "pairs.parquet", columns=["pair_id"])["pair_id"][place])


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("run", ["good", "other", "live", "failed", "nasty"])
def test_every_page_opens_every_readable_run(opened: Opened, page: str, run: str) -> None:
    app = opened(page, run=run)
    assert len(app.get("plotly_chart")) >= 1
    assert "How to read this" in said(app)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        ("empty", "it has no run\\.json"),
        ("half", "cannot be read\\: Unterminated string"),
        ("newer", "has schema 99\\, and this version reads schema 1"),
        ("listed", "should hold a JSON object but holds a list"),
    ],
)
def test_a_broken_run_is_explained(opened: Opened, page: str, run: str, sentence: str) -> None:
    assert sentence in said(opened(page, run=run))


@pytest.mark.parametrize("page", PAGES[1:])
@pytest.mark.parametrize("name", ["../good", "..", "/etc", "a/b", "$x$ <b>", "not-there"])
def test_names_that_lead_elsewhere_are_refused(opened: Opened, page: str, name: str) -> None:
    app = opened(page, run=name)
    assert "cannot be shown here" in said(app)
    assert not app.get("plotly_chart")


@pytest.mark.parametrize("page", PAGES)
def test_links_that_lead_elsewhere_are_refused(opened: Opened, page: str, tmp_path: Path) -> None:
    write_fake_run(tmp_path / "outside", "secret", pairs=20)
    root = tmp_path / "runs"
    write_fake_run(root, "good", pairs=20)
    (root / "folder").symlink_to(tmp_path / "outside" / "secret")
    inner = write_fake_run(root, "inner", pairs=20, seed=1)
    (inner / "pairs.parquet").unlink()
    (inner / "pairs.parquet").symlink_to(tmp_path / "outside" / "secret" / "pairs.parquet")
    assert "leads outside" in said(opened(page, root=root, run="folder"))
    assert "leads outside" in said(opened(page, root=root, run="inner"))


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
    assert "Shown below: trained" in said(app)
    app.switch_page("views/pairs.py").run()
    assert app.selectbox(key="run_picker").value == "trained"


def test_reports_are_listed_apart(opened: Opened, tmp_path: Path) -> None:
    run = write_fake_run(tmp_path, "trained", pairs=20)
    (run / "report.html").write_text("")
    report = write_fake_report(tmp_path, "report", "2026-02-01T09:30:00+00:00")
    app = opened("views/runs.py", root=tmp_path)
    runs, listed = app.dataframe[0].value, app.dataframe[1].value
    assert runs["run"].tolist() == ["trained"]
    assert listed["report"].tolist() == ["report", "trained"]
    assert listed["created"].tolist() == ["2026-02-01 09:30 UTC", "2026-01-01 10:00 UTC"]
    assert listed["file"].tolist() == [f"{folder}/report.html" for folder in (report, run)]
    app.switch_page("views/ties.py").run()
    assert app.selectbox(key="run_picker").options == ["trained"]
    for page in PAGES:
        assert "is an analysis" in said(opened(page, root=tmp_path, run="report"))


@pytest.mark.parametrize("kind", ["sft", "reward-model"])
def test_a_stage_before_is_listed_with_its_report_and_has_no_pairs(
    opened: Opened, tmp_path: Path, kind: str
) -> None:
    folder = write_fake_report(tmp_path, "stage", "2026-02-01T09:30:00+00:00")
    change_json(folder / "run.json", kind=kind)
    app = opened("views/runs.py", root=tmp_path)
    assert not app.exception
    assert app.dataframe[0].value["report"].tolist() == ["stage"]
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


def test_the_runs_filter_finds_by_name_and_setting(opened: Opened) -> None:
    app = opened("views/runs.py")
    app.text_input[0].set_value("plc oth").run()
    assert app.dataframe[0].value["run"].tolist() == ["other"]
    app.text_input[0].set_value("nothing like this").run()
    assert "No run matches" in said(app)


def test_provenance_shows_what_differs(opened: Opened) -> None:
    app = opened("views/runs.py", run=["good", "other"])
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
    assert not opened("views/runs.py", root=tmp_path, run=["a", "b"]).warning
    info = open_run(paths[1]).info
    change_json(paths[1] / "run.json", **{section: info[section] | change})
    assert sentence in said(opened("views/runs.py", root=tmp_path, run=["a", "b"]))


def test_runs_of_older_versions_are_compared_by_what_they_hold(
    opened: Opened, tmp_path: Path
) -> None:
    paths = [write_fake_run(tmp_path, name, pairs=20) for name in ("a", "b", "new")]
    for path, weights in zip(paths, ("1" * 16, "2" * 16), strict=False):
        change_json(path / "run.json", reference={"weights": weights}, data={"rows": 20})
    old = opened("views/runs.py", root=tmp_path, run=["a", "b"])
    assert "different starting weights (reference.weights)" in said(old)
    assert "in another form" in said(old)
    assert "cannot be told" in said(opened("views/runs.py", root=tmp_path, run=["a", "new"]))


def test_the_data_of_a_run_is_told_in_a_sentence(opened: Opened, runs: Path) -> None:
    assert plain(open_run(runs / "good").data_sentence()) in said(opened("views/runs.py"))


def test_runs_without_a_correction_are_shown(opened: Opened, tmp_path: Path) -> None:
    write_fake_run(tmp_path, "dpo", pairs=20, objective="dpo")
    chart = opened("views/runs.py", root=tmp_path).get("plotly_chart")[0]
    assert "no correction under this objective" in chart.proto.spec
    assert "dpo corrects nothing" in said(opened("views/pairs.py", root=tmp_path))


def test_pairs_filters_and_sorting(opened: Opened) -> None:
    app = opened("views/pairs.py", run="good")
    everything = app.dataframe[0].value
    assert (everything["weight"] * everything["q_flip"]).is_monotonic_decreasing
    assert everything["step"].notna().all()
    app.selectbox(key="kept_pairs_sort").set_value("q_flip").run()
    assert app.dataframe[0].value["q_flip"].is_monotonic_decreasing
    app.multiselect(key="kept_pairs_state").set_value(["tie"]).run()
    app.selectbox(key="kept_pairs_sort").set_value("q_tie").run()
    app.slider(key="kept_pairs_q").set_value((0.0, 0.5)).run()
    view = app.dataframe[0].value
    assert set(view["oracle_state"]) == {"tie"}
    assert view["q_tie"].is_monotonic_decreasing
    assert view["q_flip"].max() <= 0.5
    assert 0 < len(view) < len(everything)
    app.slider(key="kept_pairs_q").set_value((0.99, 0.99)).run()
    assert "No pair matches" in said(app)


def test_no_text_column_reaches_the_table(opened: Opened) -> None:
    columns = set(opened("views/pairs.py", run="good").dataframe[0].value.columns)
    assert not columns & {"prompt", "chosen", "rejected", "metadata"}


def test_the_pair_in_the_link_is_shown_and_kept(opened: Opened, runs: Path) -> None:
    pair = first_pair(runs, "good", 7)
    app = opened("views/pairs.py", run="good", pair=pair)
    assert pair in [element.value for element in app.code]
    assert "answer 7" in said(app)
    app.switch_page("views/ties.py").run()
    app.switch_page("views/pairs.py").run()
    assert not app.exception
    assert pair in [element.value for element in app.code]
    assert app.selectbox(key="run_picker").value == "good"


def test_filters_survive_a_page_switch(opened: Opened) -> None:
    app = opened("views/pairs.py", run="good")
    app.selectbox(key="kept_pairs_sort").set_value("margin").run()
    app.switch_page("views/ties.py").run()
    app.switch_page("views/pairs.py").run()
    assert app.selectbox(key="kept_pairs_sort").value == "margin"


def test_an_unknown_pair_is_named(opened: Opened) -> None:
    app = opened("views/pairs.py", run="good", pair="<b>$x$")
    assert r"This run has no pair \<b\>\$x\$" in said(app)


@pytest.mark.parametrize("place", range(len(NASTY_TEXTS)))
def test_odd_texts_are_shown_literally(opened: Opened, runs: Path, place: int) -> None:
    html = [e.proto.body for e in opened_pair(opened, runs, place).get("html")]
    shown = "".join(html)
    assert "<script" not in shown
    assert "<img" not in shown
    assert "\0" not in shown


def test_unseen_characters_are_shown_by_their_codes() -> None:
    chosen, rejected, _ = marked("a\0 \ud800 \u202eb\r\n", "<i>&amp;")
    for code in (r"\x00", r"\ud800", r"\u202e", r"\r"):
        assert f">{code}</span>" in chosen
    assert "&lt;i&gt;&amp;amp;" in rejected
    assert plain("# *a*\n$b$ :c: \0") == r"\# \*a\* \$b\$ \:c\: \\x00"


def test_only_differing_words_are_marked() -> None:
    chosen, rejected, note = marked("the red\n  kettle", "the blue\n  kettle")
    assert note.startswith("Marked words are those")
    assert ">the <mark>red</mark>\n  kettle<" in chosen
    assert ">the <mark>blue</mark>\n  kettle<" in rejected
    assert "<mark>" not in marked("same text", "same text")[0]
    assert "<mark>" not in marked("word " * 2000, "x")[0]
    assert "(missing)" in marked(None, "x")[0]


def test_why_nothing_is_marked_is_said() -> None:
    apart = marked("one two three the four five", "six the seven eight nine ten")
    assert "<mark>" not in apart.chosen + apart.rejected
    assert "less than 30 % of their words" in apart.note
    assert "above 1,500 words" in marked("word " * 2000, "x").note
    assert "an answer is empty" in marked("", "x").note


def opened_pair(opened: Opened, runs: Path, place: int) -> AppTest:
    """The page Pairs with one of the odd pairs open."""
    return opened("views/pairs.py", run="nasty", pair=first_pair(runs, "nasty", place))


def test_ties_shows_the_numbers_of_the_audit(opened: Opened, runs: Path) -> None:
    run = open_run(runs / "good")
    expected = audit.tie_selectivity(run.visits(), run.pairs())
    app = opened("views/ties.py", run="good")
    slices, tests = (element.value for element in app.dataframe)
    assert slices["q_tie_mean"].tolist() == expected.slices["q_tie_mean"].tolist()
    assert tests["rank-biserial r"].tolist() == expected.tests["rank_biserial"].tolist()


def test_ties_compares_within_one_source(opened: Opened) -> None:
    app = opened("views/ties.py", run="other")
    assert app.selectbox(key="kept_ties_source").options == ["one", "two"]
    app.selectbox(key="kept_ties_source").set_value("two").run()
    assert app.dataframe[0].value["n"].tolist() == [20, 20]


def test_pairs_without_scores_have_no_gap(opened: Opened) -> None:
    assert "carry no scores" in said(opened("views/ties.py", run="nasty"))


def test_a_run_without_visits_or_metrics_opens(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "early", pairs=20)
    for file in [path / "metrics.parquet", *(path / "visits").iterdir()]:
        file.unlink()
    for page in ("views/runs.py", "views/ties.py"):
        assert "been visited yet" in said(opened(page, root=tmp_path, run="early"))
    assert len(opened("views/pairs.py", root=tmp_path, run="early").dataframe[0].value) == 20
    (path / "pairs.parquet").unlink()
    for page in PAGES:
        assert "no pairs\\.parquet yet" in said(opened(page, root=tmp_path, run="early"))


def test_damaged_files_are_named(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "damaged", pairs=20)
    (path / "pairs.parquet").write_bytes(b"PAR1 no")
    (path / "metrics.parquet").write_bytes(b"")
    for page in PAGES:
        assert "cannot be read" in said(opened(page, root=tmp_path, run="damaged"))


def test_missing_columns_are_named_or_left_out(opened: Opened, tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "sparse", pairs=20)
    for name, drop in (("pairs", ["flipped", "oracle_state", "source"]), ("metrics", ["gamma"])):
        table = pd.read_parquet(path / f"{name}.parquet").drop(columns=drop)
        table.to_parquet(path / f"{name}.parquet")
    assert opened("views/pairs.py", root=tmp_path, run="sparse").dataframe
    assert "lacks the column" in said(opened("views/ties.py", root=tmp_path, run="sparse"))
    assert opened("views/runs.py", root=tmp_path, run="sparse").get("plotly_chart")


def test_the_app_needs_no_torch() -> None:
    script = (
        "import sys; sys.path.insert(0, 'app'); import reading, plc_core.analysis.figures;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0

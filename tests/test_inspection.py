"""What is said of runs of any size: the digest of all visits, the queries over it, the figures."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from figures.routing import cartography
from figures.routing_over_time import correction_by_phase, phases_of
from figures.triangle import ternary
from inspection import pair_table, queries, text_search
from inspection.aggregate import STEP_CELLS, VALUE_CELLS, Counts
from inspection.database import query
from inspection.digest import Digest, digest, kept, newest, unread
from inspection.group_tests import WEAK, bench, group_choices
from inspection.judged_answers import prompt_of
from inspection.pair import read_pair, read_visits
from inspection.precision_at_k import precision_at
from inspection.preparing import is_busy, prepare
from inspection.queries import Filter, Rows
from inspection.sorting import sorted_places
from inspection.step_metrics import noise_of, thinned
from inspection.text_search import search
from recipe_curves import TEMPERATURES, WARMUP, recipe_curve

from plc_core.analysis import audit
from plc_core.analysis.curves import last_tenth, smoothed
from plc_core.analysis.noise import P_FLIP_FROM
from plc_core.data.votes import VOTES, vote_group
from plc_core.runs import Run, open_run
from plc_core.storage.files import RunError, write_table
from tests.fake_run import still_training, write_fake_run
from tests.huge_run import write_huge_run
from tests.rewritten import rewrite


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache for these tests alone: only so many runs are kept in one, and others make more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two epochs of 400 pairs of two sources, with votes, ties, p_flip and one odd text."""
    root = tmp_path_factory.mktemp("runs")
    path = write_fake_run(
        root,
        "run",
        pairs=400,
        epochs=2,
        votes=True,
        ties=30,
        sources=("one", "two"),
        texts=(("a Needle (1+1) here", "no"), ("x", "y"), ("z", "A NEEDLE")),
    )
    return open_run(path)


@pytest.fixture(scope="module")
def found(run: Run) -> Digest:
    return digest(run)


@pytest.fixture(scope="module")
def pairs(found: Digest) -> pd.DataFrame:
    return pd.read_parquet(found.pairs_path)


def test_a_pair_has_its_last_visit_as_the_audit_has_it(run: Run, pairs: pd.DataFrame) -> None:
    expected = audit.join_last_visits(run.visits(), run.pairs())
    assert pairs["pair_id"].tolist() == expected["pair_id"].tolist()
    assert pairs["last_step"].tolist() == expected["step"].tolist()
    for name in ("margin", "z", "q_clean", "q_flip", "q_tie", "confidence", "weight"):
        np.testing.assert_array_equal(pairs[name], expected[name])


def test_a_pair_has_the_mean_and_spread_of_its_visits(run: Run, pairs: pd.DataFrame) -> None:
    groups = run.visits().astype({"z": "float64"}).groupby("pair_id")
    ids = pairs["pair_id"]
    np.testing.assert_allclose(pairs["mean_z"], groups["z"].mean().loc[ids], rtol=1e-5)
    np.testing.assert_allclose(pairs["sd_z"], groups["z"].std(ddof=0).loc[ids], atol=1e-4)
    assert pairs["visits"].tolist() == groups.size().loc[ids].tolist()
    assert pairs["first_step"].tolist() == groups["step"].min().loc[ids].tolist()
    np.testing.assert_array_equal(pairs["largest_q_tie"], groups["q_tie"].max().loc[ids])


def test_p_flip_is_that_of_the_first_visit(run: Run, pairs: pd.DataFrame) -> None:
    visits = pd.concat(map(pd.read_parquet, sorted((run.path / "visits").iterdir())))
    first = visits.sort_values("step").drop_duplicates("pair_id").set_index("pair_id")
    # Earlier it could not be read yet, and a later visit is no substitute: labels are remembered.
    known = first["p_flip"].where(first["step"] >= P_FLIP_FROM)
    np.testing.assert_array_equal(pairs["p_flip"], known.loc[pairs["pair_id"]])
    assert 0 < known.isna().sum() < len(known)


def test_votes_are_counted_and_grouped_by_the_rule(run: Run, pairs: pd.DataFrame) -> None:
    votes = pd.read_parquet(run.path / "pairs.parquet", columns=["votes"])["votes"]
    assert pairs["vote_group"].tolist() == [vote_group(list(own)) for own in votes]
    assert pairs["votes_tie"].tolist() == [list(own).count("tie") for own in votes]


def test_steps_hold_the_sums_of_their_visits(run: Run, found: Digest) -> None:
    visits, steps = run.visits().astype("float64", errors="ignore"), found.steps()
    visits["weight_flip"] = visits["weight"] * visits["q_flip"]
    sums = visits.groupby("step")[["q_clean", "q_tie", "weight", "weight_flip"]].sum()
    assert steps["step"].tolist() == sums.index.tolist()
    for name in sums:
        np.testing.assert_allclose(steps[name], sums[name], rtol=1e-6)
    phases = phases_of(steps)
    assert phases["visits"].sum() == len(visits)
    assert phases["share"].sum() == pytest.approx(1)
    first = visits["step"] * 5 // (visits["step"].max() + 1) == 0
    assert phases["mean_weight"][0] == pytest.approx(visits.loc[first, "weight"].mean())
    figure = correction_by_phase(phases)
    assert list(figure.data[0].y) == phases["share"].tolist()
    assert "share" in figure.layout.yaxis.title.text
    assert list(figure.data[0].text) == [f"{100 * share:.1f} %" for share in phases["share"]]


def test_cells_join_exactly_when_they_are_outgrown() -> None:
    rng = np.random.default_rng(0)
    steps, values = rng.integers(0, 1000, 5000), rng.normal(0, 30, 5000)
    grown, at_once = Counts(-1.0, 1.0), Counts(-256.0, 256.0, width=8)
    for part in np.array_split(np.argsort(steps), 7):
        grown.add(steps[part], values[part], grows=True)
    at_once.add(steps, values, grows=True)
    assert (grown.width, grown.high, grown.table.sum()) == (8, 128.0, 5000)
    coarse = at_once.table[:, VALUE_CELLS // 4 : -VALUE_CELLS // 4]
    joined = grown.table[:, 0::2] + grown.table[:, 1::2]
    np.testing.assert_array_equal(joined, coarse)
    assert grown.table.shape == (STEP_CELLS, VALUE_CELLS)


def test_values_that_are_no_numbers_are_left_out() -> None:
    counts = Counts(0.0, 1.0)
    counts.add(np.array([0, 0, 1]), np.array([np.nan, 0.5, np.inf]), grows=False)
    assert counts.table.sum() == 1


def test_a_live_run_is_added_to(tmp_path: Path) -> None:
    path = still_training(write_fake_run(tmp_path, "live", pairs=300, epochs=3))
    later = sorted((path / "visits").iterdir())[1:]
    aside = tmp_path / "aside"
    aside.mkdir()
    for file in later:
        shutil.move(file, aside / file.name)
    run = open_run(path)
    first = digest(run)
    assert newest(run).folder == first.folder
    for file in sorted(aside.iterdir()):
        shutil.move(file, path / "visits" / file.name)
    asked: list[int] = []
    grown = digest(run, lambda done, total: asked.append(total))
    assert asked == [len(later)]  # the first file is not read again
    assert (first.visits, grown.visits) == (500, 900)


def test_growing_gives_what_reading_at_once_gives(tmp_path: Path) -> None:
    path = still_training(write_fake_run(tmp_path, "live", pairs=300, epochs=3))
    whole = digest(open_run(path))
    expected, steps = pd.read_parquet(whole.pairs_path), whole.steps()
    counts = whole.counts("margin")
    shutil.rmtree(whole.folder.parent)
    files = sorted((path / "visits").iterdir())
    for file in files[1:]:
        file.rename(tmp_path / file.name)
    digest(open_run(path))
    for file in files[1:]:
        (tmp_path / file.name).rename(file)
        grown = digest(open_run(path))
    pd.testing.assert_frame_equal(pd.read_parquet(grown.pairs_path), expected)
    pd.testing.assert_frame_equal(grown.steps(), steps)
    np.testing.assert_array_equal(grown.counts("margin").table, counts.table)
    visits = read_visits(grown, 7)
    assert (
        visits["step"].tolist()
        == open_run(path).visits(pair_id=expected["pair_id"][7])["step"].tolist()
    )


def test_a_resumed_run_whose_files_changed_is_read_again(tmp_path: Path) -> None:
    path = still_training(write_fake_run(tmp_path, "cut", pairs=300, epochs=3))
    run = open_run(path)
    digest(run)
    run.truncate_after(60)
    again = digest(run)
    assert again.last_step == 59
    assert again.visits == len(run.visits())


def test_what_is_in_no_run_is_refused(tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "odd", pairs=40)
    table = pq.read_table(path / "pairs.parquet")
    write_table(path / "pairs.parquet", table.slice(5))
    with pytest.raises(RunError, match=r"visits are to pairs that pairs\.parquet does not have"):
        digest(open_run(path))
    write_table(path / "pairs.parquet", pa.concat_tables([table, table.slice(0, 2)]))
    with pytest.raises(RunError, match="2 repeated ids"):
        digest(open_run(path))
    write_table(path / "pairs.parquet", table.drop_columns("pair_id"))
    with pytest.raises(RunError, match="lacks the column pair_id"):
        digest(open_run(path))


def test_damaged_and_missing_visits_are_sentences(tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "odd", pairs=40)
    file = next((path / "visits").iterdir())
    whole = pq.read_table(file)
    write_table(file, whole.drop_columns("z"))
    with pytest.raises(RunError, match=r"lacks the column\(s\) z"):
        digest(open_run(path))
    words = pa.array(["none"] * len(whole))
    write_table(file, whole.set_column(whole.column_names.index("z"), "z", words))
    with pytest.raises(RunError, match="string in the column z, where numbers are expected"):
        digest(open_run(path))
    file.write_bytes(b"PAR1 half")
    with pytest.raises(RunError, match="is cut short or no Parquet file"):
        digest(open_run(path))
    file.unlink()
    file.symlink_to("/etc/hostname")
    with pytest.raises(RunError, match="is a link"):
        digest(open_run(path))


def test_columns_of_other_makers_do_not_hide_those_of_the_digest(tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "odd", pairs=40)
    whole = digest(open_run(path))
    table = pq.read_table(path / "pairs.parquet")
    for name in ("hash", "Z", "Margin", "votes_tie", "Row", 'with "quotes"'):
        table = table.append_column(name, pa.array(np.arange(40) * 1.5))
    write_table(path / "pairs.parquet", table)
    odd = digest(open_run(path))
    assert set(odd.columns) - set(whole.columns) == {'with "quotes"'}
    for column in ("z", "margin"):
        orders = [queries.ordered(found, Filter(), column, True) for found in (whole, odd)]
        assert orders[0].tolist() == orders[1].tolist()
    write_table(path / "pairs.parquet", table.append_column("file_row_number", pa.array(range(40))))
    with pytest.raises(RunError, match="give that column another name"):
        digest(open_run(path))


def test_an_id_that_no_file_can_hold_is_not_found(found: Digest) -> None:
    assert queries.row_of(found, "\ud800") is None
    assert queries.row_of(found, "") is None


def test_orders_are_whole_and_the_same_each_time(found: Digest, pairs: pd.DataFrame) -> None:
    order = queries.ordered(found, Filter(), "q_flip", True)
    expected = pairs.sort_values(["q_flip", "row"], ascending=[False, True])
    assert order.tolist() == expected["row"].tolist()
    page = queries.rows(found, order[130:260], ["pair_id", "q_flip", "not there"])
    assert page["pair_id"].tolist() == expected["pair_id"].tolist()[130:260]
    assert page["q_flip"].tolist() == expected["q_flip"].tolist()[130:260]
    assert queries.ordered(found, Filter(), "q_flip", True) is order
    assert not len(queries.ordered(found, Filter(sources=("none",)), "q_flip", True))


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("some", [True, False])
def test_numbers_are_sorted_as_by_pandas(descending: bool, some: bool) -> None:
    rng = np.random.default_rng(0)
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, None, 1e-45, -1e-45]
    values = pa.array([*rng.normal(size=300), *odd * 4, *rng.integers(-2, 2, 90)], pa.float32())
    places = np.flatnonzero(rng.random(len(values)) < 0.5) if some else np.arange(len(values))
    order = sorted_places(pa.chunked_array([values]), places if some else None, descending)
    column = pd.Series(values.to_pandas()).iloc[places]
    expected = column.sort_values(ascending=not descending, kind="stable", na_position="last")
    assert order.tolist() == expected.index.tolist()


def test_missing_numbers_come_last_in_both_directions(tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "half", pairs=60, state="failed")
    half = digest(open_run(path))
    for descending in (True, False):
        order = queries.ordered(half, Filter(), "z", descending)
        page = queries.rows(half, order, ["z"])
        assert page["z"].notna().tolist() == [True] * 30 + [False] * 30


def test_filters_count_what_pandas_counts(found: Digest, pairs: pd.DataFrame) -> None:
    cases = {
        Filter(ranges=(("q_flip", 0.2, 0.6),)): pairs["q_flip"].between(0.2, 0.6),
        Filter(sources=("two",)): pairs["source"] == "two",
        Filter(states=("tie", "flip")): pairs["oracle_state"].isin(["tie", "flip"]),
        Filter(marker="swapped"): pairs["flipped"],
        Filter(marker="not swapped"): ~pairs["flipped"],
        Filter(marker="injected tie"): pairs["injected_tie"],
        Filter(votes=("unanimous",)): pairs["vote_group"] == "unanimous",
        Filter(ids=tuple(pairs["pair_id"][:7])): pairs["row"] < 7,
        Filter(without=tuple(pairs["pair_id"][:7])): pairs["row"] >= 7,
        Filter(rows=Rows("some", np.array([3, 9]))): pairs["row"].isin([3, 9]),
        Filter(marker="swapped", sources=("one",)): pairs["flipped"] & (pairs["source"] == "one"),
    }
    for chosen, expected in cases.items():
        assert queries.count(found, chosen) == int(expected.sum())
    with pytest.raises(RunError, match="have no column"):
        queries.count(found, Filter(ranges=(('z" OR 1=1 --', 0, 1),)))


def test_texts_are_searched_literally_in_any_case(run: Run) -> None:
    def found(text: str) -> list[int]:
        going_on = search(run.path, text)
        going_on.wait(600, whole=True)
        assert going_on.ended
        assert going_on.read == going_on.total == 400
        return going_on.rows().places.tolist()

    assert found("needle") == [0, 2]
    assert found("(1+1)") == [0]
    assert found("KETTLE 17 ") == [17]
    assert found("' OR 1=1 --") == []


def test_a_search_tells_what_it_found_before_its_end(
    run: Run, found: Digest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_search, "FIRST_PAIRS", 20)
    monkeypatch.setattr(text_search, "PAIRS_A_PART", 100)
    gate, query = threading.Semaphore(0), text_search.query

    def one_part(*given: Any) -> Any:
        assert gate.acquire(timeout=600)
        return query(*given)

    monkeypatch.setattr(text_search, "query", one_part)
    going_on = text_search.Search(run.path, "kettle 1")
    expected = [n for n in range(400) if str(n).startswith("1")]
    names = set()
    for end in (0, 20, 120, 220, 320):
        while going_on.read < end:
            time.sleep(0.01)
        assert going_on.rows().places.tolist() == [n for n in expected if n < end]
        assert not going_on.ended
        names.add(going_on.rows().name)
        gate.release()
    going_on.wait(600, whole=True)
    assert len(names) == 5  # what grows is never taken for what it was
    assert going_on.rows().places.tolist() == expected
    assert queries.count(found, Filter(rows=going_on.rows())) == len(expected)


def test_a_search_in_a_damaged_file_ends_with_a_sentence(tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "cut", pairs=20)
    whole = (path / "pairs.parquet").read_bytes()
    (path / "pairs.parquet").write_bytes(whole[:-10])
    going_on = search(path, "kettle")
    going_on.wait(600, whole=True)
    with pytest.raises(RunError, match=r"pairs\.parquet cannot be read: it is cut short or no"):
        going_on.rows()


def test_a_search_that_met_a_problem_is_begun_again(tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "run", pairs=20)
    going_on = search(path, "kettle")
    going_on.wait(600, whole=True)
    assert search(path, "kettle") is going_on
    going_on.problem = "out of memory"
    assert search(path, "kettle") is not going_on


def test_a_search_that_nobody_waits_for_ends_and_says_so(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, query = threading.Semaphore(0), text_search.query

    def one_part(*given: Any) -> Any:
        assert gate.acquire(timeout=600)
        return query(*given)

    monkeypatch.setattr(text_search, "FIRST_PAIRS", 20)
    monkeypatch.setattr(text_search, "query", one_part)
    first = search(run.path, "given up")
    for number in range(text_search._KEPT):
        search(run.path, f"newer {number}")
    for _ in range(200):
        gate.release()
    first.wait(600, whole=True)
    with pytest.raises(RunError, match="Newer searches stopped"):
        first.rows()


def test_a_digest_is_made_in_another_process(tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "run", pairs=40)
    run = open_run(path)
    assert kept(run) is None
    assert unread(run) == sum(file.stat().st_size for file in (path / "visits").iterdir())
    task = prepare(run)
    assert prepare(run) is task
    assert is_busy()
    assert task.ended.wait(60)
    assert not is_busy()
    assert task.problem is None
    made = kept(run)
    assert made is not None
    assert made.visits == 40
    assert unread(run) == 0


def test_a_digest_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "run", pairs=40)
    next((path / "visits").iterdir()).write_bytes(b"PAR1 cut")
    task = prepare(open_run(path))
    assert task.ended.wait(60)
    assert "is cut short or no Parquet file" in str(task.problem)
    assert kept(open_run(path)) is None


def test_runs_that_are_looked_at_keep_their_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("inspection.digest.KEPT_RUNS", 2)
    first, second, third = (
        open_run(write_fake_run(tmp_path, name, pairs=30, epochs=1)) for name in ("a", "b", "c")
    )
    for run, seconds in ((first, 60), (second, 30)):
        os.utime(digest(run).folder.parent, (time.time() - seconds,) * 2)
    assert kept(first) is not None
    digest(third)
    assert kept(first) is not None
    assert kept(second) is None


def test_samples_are_drawn_alike_and_bounded(found: Digest) -> None:
    one, two = (queries.sample(found, Filter(), ["pair_id", "z"], 50) for _ in range(2))
    assert len(one) == 50
    pd.testing.assert_frame_equal(one, two)
    assert len(queries.sample(found, Filter(), ["z"], 1_000)) == 400


def test_histograms_and_means_are_numpys(found: Digest, pairs: pd.DataFrame) -> None:
    edges = np.linspace(-2, 2, 9)
    counts = queries.histogram(found, "z", Filter(), edges)
    np.testing.assert_array_equal(counts, np.histogram(pairs["z"].astype("float64"), edges)[0])
    means = queries.means(found, ["q_flip", "not there"])
    assert means["q_flip"] == pytest.approx(pairs["q_flip"].astype("float64").mean())
    assert np.isnan(means["not there"])
    assert means["visited"] == 400
    assert queries.bounds(found, "z") == pytest.approx((pairs["z"].min(), pairs["z"].max()))
    assert queries.values(found, "source") == ["one", "two"]


def test_a_pair_is_read_with_its_texts_and_visits(run: Run, found: Digest) -> None:
    pair = read_pair(found, 2)
    assert (pair["chosen"], pair["rejected"]) == ("z", "A NEEDLE")
    visits = read_visits(found, 2)
    expected = run.visits(pair_id=pair["pair_id"])
    assert visits["step"].tolist() == expected["step"].tolist()
    np.testing.assert_array_equal(visits["policy_chosen"], expected["policy_chosen"])
    assert queries.row_of(found, pair["pair_id"]) == 2
    assert queries.row_of(found, "' OR 1=1") is None


def test_text_that_is_no_unicode_is_shown_by_its_bytes(tmp_path: Path) -> None:
    path = write_fake_run(tmp_path, "bytes", pairs=20)
    table = pq.read_table(path / "pairs.parquet")
    broken = pa.array([b"lone \xed\xa0\x80 end"] * 20, pa.binary()).view(pa.string())
    table = table.set_column(table.column_names.index("chosen"), "chosen", broken)
    rewrite(path / "pairs.parquet", table)
    found = digest(open_run(path))
    assert read_pair(found, 0)["chosen"] == "lone \ud800 end"


def test_metrics_are_thinned_with_both_ends(run: Run) -> None:
    table = thinned(str(run.path / "metrics.parquet"), 10)
    whole = run.metrics()
    assert len(table) <= 11
    assert table["step"].iloc[[0, -1]].tolist() == whole["step"].iloc[[0, -1]].tolist()
    assert len(thinned(str(run.path / "metrics.parquet"), 1_000)) == len(whole)


def test_the_noise_rate_is_that_of_the_first_epoch(run: Run, tmp_path: Path) -> None:
    found = noise_of(run)
    assert found is not None
    assert (found.step, found.rate) == (39, 0.27)
    older = write_fake_run(tmp_path, "older", pairs=20, posterior=False)
    assert noise_of(open_run(older)) is None


def test_recipes_are_those_of_the_objective() -> None:
    torch = pytest.importorskip("torch")
    from plc_core.objective import PRIOR, RECIPES
    from plc_core.objective.routing import energies

    z = np.linspace(-4, 4, 33)
    for name, recipe in RECIPES.items():
        assert TEMPERATURES[name] == (recipe.tau_dir, recipe.tau_tie)
        assert WARMUP[name] == recipe.warmup
        curve = recipe_curve({"recipe": name, "prior": list(PRIOR)}, z)
        q = energies(torch.tensor(z), PRIOR, recipe).softmax(-1).numpy()
        np.testing.assert_allclose(curve[["q_clean", "q_flip", "q_tie"]], q, atol=1e-12)
    two = {"recipe": "balanced", "prior": [0.8, 0.08, 0.12]}
    two["objective_options"] = {"states": ["clean", "flip"]}
    assert (recipe_curve(two)["q_tie"] == 0).all()
    assert recipe_curve({"recipe": "of another version"}).empty


def test_numbers_are_means_of_the_last_tenth_with_their_error(run: Run) -> None:
    table = run.metrics()
    other = table.assign(loss=table["loss"] + np.arange(len(table)) % 2)
    numbers = last_tenth({"a": table, "b": other}, ["loss", "absent"], "a").set_index("run")
    end = table["loss"].to_numpy()[-math.ceil(len(table) / 10) :]
    expected = end.mean(), end.std(ddof=1) / math.sqrt(len(end))
    assert numbers.loc["a", ["loss", "± loss"]].tolist() == pytest.approx(expected)
    odd = (np.arange(len(table)) % 2)[-len(end) :]
    assert numbers.loc["b", "Δ loss"] == pytest.approx(odd.mean())
    assert numbers.loc["b", "± Δ loss"] == pytest.approx(odd.std(ddof=1) / math.sqrt(len(end)))
    assert list(numbers) == ["step", "loss", "± loss", "Δ loss", "± Δ loss"]
    assert smoothed(pd.Series([0.0, 3, 0, np.nan])).tolist()[:3] == [1.5, 1, 1.5]
    assert np.isnan(smoothed(pd.Series([0.0, 3, 0, np.nan])).iloc[3])


def test_precision_does_not_depend_on_the_order_of_equal_scores() -> None:
    scores, marked = np.array([3.0] + [1.0] * 19), np.array([True] + [True] * 9 + [False] * 10)
    rng = np.random.default_rng(0)
    for order in (np.arange(20), rng.permutation(20)):
        table = precision_at(scores[order], marked[order])
        assert table["k"].iloc[0] == 10
        assert table["hits"].iloc[0] == pytest.approx(1 + 9 * 9 / 19)
        assert table["precision"].iloc[-1] == pytest.approx(0.5)
        assert table["base_rate"].iloc[-1] == 0.5
    assert precision_at([], []).empty
    assert precision_at([1.0, 2.0], [False, False])["precision"].tolist() == [0.0]
    with pytest.raises(ValueError, match="of one length"):
        precision_at([1.0], [True, False])


def test_the_bench_tests_as_the_statistics_do(found: Digest, pairs: pd.DataFrame) -> None:
    from plc_core.analysis.statistics import holm, mann_whitney

    result = bench(found, ["q_flip", "|margin|"], "label swapped", "label not swapped", "greater")
    swapped = pairs["flipped"]
    expected = [
        mann_whitney(values[swapped], values[~swapped], "greater")
        for values in (pairs["q_flip"], pairs["margin"].abs())
    ]
    assert [row.test for row in result.rows] == expected
    assert [row.adjusted for row in result.rows] == holm([t.p for t in expected]).tolist()
    assert result.shared == 0
    assert result.table()["a"].tolist() == ["label swapped"] * 2
    low = bench(found, ["q_tie"], "lowest 20% of z", "highest 20% of z", "two-sided").rows[0].test
    assert (low.n_a, low.n_b) == (80, 81)  # both hold the value at their edge
    assert {WEAK, "injected tie", "votes unanimous", "source one"} <= set(group_choices(found))


def test_no_pair_is_in_both_groups_of_a_test(found: Digest, pairs: pd.DataFrame) -> None:
    from plc_core.analysis.statistics import mann_whitney

    swapped, z = pairs["flipped"], pairs["z"]
    rest = bench(found, ["z"], "all pairs", "label swapped", "less")
    assert rest.rows[0].test == mann_whitney(z[~swapped], z[swapped], "less")
    assert rest.note == (
        f"{swapped.sum():,} pairs are in both groups, and count in the smaller one only: it is "
        "compared with all others."
    )
    crossed = bench(found, ["z"], "label swapped", "source one", "two-sided")
    one = pairs["source"] == "one"
    both = one & swapped
    assert crossed.shared == both.sum() > 0
    assert crossed.rows[0].test == mann_whitney(z[swapped & ~one], z[one & ~swapped])
    assert crossed.note.endswith("are left out of both.")
    same = bench(found, ["z"], "source one", "source one", "two-sided")
    assert same.rows[0].test.n_a == same.rows[0].test.n_b == 0


def test_figures_bear_runs_without_visits_or_spread(found: Digest) -> None:
    nothing = pd.DataFrame({n: [np.nan] for n in ("q_clean", "q_flip", "q_tie", "z", "mean_z")})
    assert "No pair has been visited" in ternary(nothing, nothing[:0], None, 1).to_json()
    endless = nothing.fillna(np.inf)
    assert "No pair has been visited" in ternary(endless, nothing[:0], None, 1).to_json()
    points = queries.sample(
        found, Filter(), ["pair_id", "z", "mean_z", "sd_z", "q_flip", "visits"], 99
    )
    assert "spread of z" in cartography(points, 400).to_json()
    once = points.assign(sd_z=np.nan, last_step=3)
    assert "z at the one visit" in cartography(once, 400).to_json()


def test_the_corners_of_the_triangle_bear_their_names_alone(found: Digest) -> None:
    points = queries.sample(found, Filter(), ["pair_id", "z", "q_clean", "q_flip", "q_tie"], 99)
    layout = ternary(points, points[:0], None, 400).layout.ternary
    for axis in (layout.aaxis, layout.baxis, layout.caxis):
        assert axis.title.text
        assert not {0, 1} & set(axis.tickvals)


def test_what_the_database_says_is_told_in_other_words(tmp_path: Path, run: Run) -> None:
    gone = str(tmp_path / "gone.parquet")
    with pytest.raises(RunError) as missing:
        query("SELECT * FROM read_parquet($1)", [gone])
    assert str(missing.value) == f"{gone} is no longer there."
    with pytest.raises(RunError) as odd:
        query("SELECT nothing FROM read_parquet($1)", [str(run.path / "pairs.parquet")])
    assert "pairs.parquet cannot be read; it may be damaged" in str(odd.value)
    assert "Binder" not in str(odd.value)


@pytest.mark.parametrize("pairs", [20_000])
def test_a_large_run_is_read_and_queried_quickly(tmp_path: Path, pairs: int) -> None:
    # The full size, 1,000,000 pairs and 10,000,000 visits: python -m tests.huge_run FOLDER, then
    # python -m tests.measure_inspector FOLDER.
    path = write_huge_run(tmp_path, "large", pairs=pairs, epochs=3, sentences=3)
    before = psutil.Process().memory_info().rss
    found = digest(open_run(path))
    assert (found.size, found.visits) == (pairs, 3 * pairs)
    started = time.process_time()
    order = queries.ordered(found, Filter(marker="swapped"), "z", False)
    page = queries.rows(found, order[:500], ["row", "z"])
    read_visits(found, int(page["row"][0]))
    assert time.process_time() - started < 2
    assert psutil.Process().memory_info().rss - before < 600e6


def test_the_prompt_of_an_answer_is_its_conversation_where_it_has_one() -> None:
    talk = [{"role": "user", "content": "[1]"}]
    assert prompt_of({"prompt": "[1]", "conversation": json.dumps(talk)}) == talk
    assert prompt_of({"prompt": "[1]", "conversation": None}) == "[1]"
    assert prompt_of({"prompt": "last", "conversation": "[half"}) == "[half"
    assert prompt_of({"conversation": "3"}) == "3"
    assert prompt_of({}) is None


def test_the_votes_that_the_inspector_counts_are_those_of_the_data() -> None:
    assert set(pair_table._VOTES) == set(VOTES)

"""A sceptic computes a whole table again from the files of the run folders.

Nothing of the project's statistics is used here: Parquet files are read with pandas, and what
follows is numpy, scipy and the standard library.
"""

import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from notebooks.studies.commercial_judge import PAPER, commercial_table
from plc_core import TrainConfig, train
from plc_core.evaluation.chain import evaluate_runs
from plc_core.evaluation.completeness import EvaluationConfig
from plc_core.evaluation.length_control import (
    length_controlled,
    length_controlled_cells,
    lengths_shown,
)
from plc_core.evaluation.methods import contestants
from plc_core.evaluation.win_rate import JoinError
from plc_core.evaluation.win_tables import win_table
from plc_core.typography import minus
from tests.chat_server import serving
from tests.paths import shared_file

N = 80
METHODS = {"DPO": {"objective": "dpo"}, "PLC-DPO": {"objective": "plc"}}
DECODINGS = ("greedy", "sampled")


def reply(body):
    """A judge that likes long answers: alone by their length, side by side the longer one."""
    text = body["messages"][-1]["content"]
    shown = re.findall(r"Start of Assistant\S* ?\S* Answer\]\n(.*?)\n\[The End", text, re.S)
    if len(shown) == 2:
        a, b = map(len, shown)
        return f"[[{'C' if a == b else 'A' if a > b else 'B'}]]", None
    return f"Rating: [[{1 + len(shown[0].split()) // 8 % 10}]]", None


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("runs"))
    small = {"num_pairs": 96, "batch_pairs": 8, "pairs_per_forward": 8, "learning_rate": 2e-3}
    runs = {
        method: train(TrainConfig(name=f"run{n}", runs_dir=folder, flip_rate=0.3, **small, **own))
        for n, (method, own) in enumerate(METHODS.items())
    }
    with serving("openai", reply) as server:
        name = f"openai:long@{server.url}/v1"
        config = EvaluationConfig(eval_prompts=N, judges=["gold", name], pairwise_judges=[name])
        evaluation = evaluate_runs(contestants(runs), config)
    return runs, evaluation


def only(evaluation, **where):
    """The answers whose columns equal `where`."""
    keep = (evaluation.judged[[*where]] == pd.Series(where)).all(axis=1)
    return replace(evaluation, judged=evaluation.judged[keep])


def read(run, relative):
    return pd.read_parquet(run.path / relative)


def rewards(runs, method, judge, decoding):
    """Rewards by prompt id; those of SFT are in the baseline's folder."""
    run, policy = (runs["DPO"], "reference") if method == "SFT" else (runs[method], "trained")
    table = read(run, f"judgements/{judge}-world.parquet")
    own = table[(table["policy"] == policy) & (table["decoding"] == decoding)]
    assert own["prompt_id"].is_unique
    return own.set_index("prompt_id")["reward"].sort_index()


def answers(runs, method, decoding, file="world"):
    run, policy = (runs["DPO"], "reference") if method == "SFT" else (runs[method], "trained")
    table = read(run, f"generations/{file}.parquet")
    own = table[(table["policy"] == policy) & (table["decoding"] == decoding)]
    return own.set_index("prompt_id").sort_index()


def outcomes(own, other):
    return np.sign(own - other.loc[own.index]).to_numpy()


def interval(values):
    drawn = np.random.default_rng(5).choice(values, (4000, len(values)))
    return np.quantile(drawn.mean(1), [0.025, 0.975])


def sign_test(wins, losses):
    """Two-sided, exact: twice the smaller tail, which for a fair coin is what it is."""
    n, k = wins + losses, min(wins, losses)
    if n == 0:
        return math.nan
    tail = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    return min(1.0, 2 * tail)


def test_every_win_rate_interval_and_test(made):
    runs, evaluation = made
    cells = evaluation.cells()
    table = evaluation.results()
    assert len(cells) == 2 * 2 * 2  # judges, decodings, SFT and PLC-DPO
    for line in cells.to_dict("records"):
        own, base = (
            rewards(runs, method, line["judge"], line["decoding"])
            for method in (line["method"], "DPO")
        )
        signs = outcomes(own, base)
        counts = [int((signs == value).sum()) for value in (1, 0, -1)]
        assert line["n"] == len(own) == len(base) == N
        assert [line["wins"], line["ties"], line["losses"]] == counts
        assert line["win_rate"] == pytest.approx(100 * (counts[0] + counts[1] / 2) / N)
        low, high = 100 * interval((signs + 1) / 2)
        assert (line["low"], line["high"]) == pytest.approx((low, high), abs=1.5)
        assert line["p_sign"] == pytest.approx(sign_test(counts[0], counts[2]), nan_ok=True)
        ranks = stats.wilcoxon(own - base, zero_method="pratt").pvalue
        assert line["p_wilcoxon"] == pytest.approx(ranks, nan_ok=True)
        keys = ["judge", "decoding", "method"]
        same = table.set_index(keys).loc[tuple(line[key] for key in keys)]
        assert same["win_rate"] == line["win_rate"]
        assert same["reward"] == pytest.approx(own.mean())
        reward_low, reward_high = interval(own.to_numpy())
        spread = own.std() / math.sqrt(N)
        assert same["reward_low"] == pytest.approx(reward_low, abs=0.2 * spread)
        assert same["reward_high"] == pytest.approx(reward_high, abs=0.2 * spread)


def test_the_verdicts_of_the_pairwise_judge_in_both_decodings(made):
    """From the file of verdicts, and once more from the answers, as the judge decides by length."""
    runs, evaluation = made
    stored = read(runs["PLC-DPO"], "judgements/long-world-against-run0.parquet")
    assert stored.groupby("decoding").size().to_dict() == dict.fromkeys(DECODINGS, N)
    cells = evaluation.verdict_cells().set_index("decoding")
    assert set(cells["method"]) == {"PLC-DPO"}
    for decoding, own in stored.groupby("decoding"):
        won = own["win"].to_numpy()
        place = {"A": 1.0, "B": 0.0, "tie": 0.5}
        shown = own["verdict"].map(place)
        assert won.tolist() == np.where(own["swapped"], 1 - shown, shown).tolist()
        assert cells.loc[decoding, "n"] == N
        counts = [int((won == value).sum()) for value in (1, 0.5, 0)]
        assert cells.loc[decoding, ["wins", "ties", "losses"]].tolist() == counts
        assert cells.loc[decoding, "p_sign"] == pytest.approx(sign_test(counts[0], counts[2]))
        assert cells.loc[decoding, "win_rate"] == pytest.approx(100 * won.mean())
        low, high = 100 * interval(won)
        assert cells.loc[decoding, "low"] == pytest.approx(low, abs=1.5)
        assert cells.loc[decoding, "high"] == pytest.approx(high, abs=1.5)
        sides = [answers(runs, method, decoding)["response"] for method in ("PLC-DPO", "DPO")]
        ids = own["prompt_id"]
        gap = (sides[0].loc[ids].str.len() - sides[1].loc[ids].str.len()).to_numpy()
        assert won.tolist() == ((np.sign(gap) + 1) / 2).tolist()
    record = json.loads(
        (runs["PLC-DPO"].path / "judgements/long-world-against-run0.json").read_text()
    )
    assert record["rows"] == 2 * N
    asked = {
        (line["prompt_id"], decoding)
        for decoding in DECODINGS
        for line in stored[stored["decoding"] == decoding].to_dict("records")
        if answers(runs, "PLC-DPO", decoding)["response"][line["prompt_id"]]
        != answers(runs, "DPO", decoding)["response"][line["prompt_id"]]
    }
    # Where sampling gave both the greedy answers there is nothing to ask again.
    assert 0 < record["usage"]["requests"] <= len(asked)
    assert record["usage"]["input_tokens"] == 100 * record["usage"]["requests"]


def test_the_win_rates_at_equal_lengths(made):
    """Of each pair of answers: its verdict and both lengths in characters, in the file's order."""
    runs, evaluation = made
    cells = length_controlled_cells(evaluation)
    assert len(cells) == 10
    for line in cells.to_dict("records"):
        method, decoding = line["method"], line["decoding"]
        ids = evaluation.judged.query("method == @method and decoding == @decoding")["prompt_id"]
        ids = list(dict.fromkeys(ids))  # the folds of the cross-validation go by their order
        length, base = (
            answers(runs, side, decoding).loc[ids, "response"].str.len() for side in (method, "DPO")
        )
        if line["judge"] == "long, side by side":  # it goes by the characters alone
            won = (np.sign(length - base) + 1) / 2
        else:
            own, other = (
                rewards(runs, side, line["judge"], decoding).loc[ids] for side in (method, "DPO")
            )
            won = (np.sign(own - other) + 1) / 2
        assert line["n"] == N
        assert line["win_rate"] == pytest.approx(100 * won.mean())
        assert line["characters"] == pytest.approx((length - base).mean())
        expected = length_controlled(won, length, base).share
        found = line["lc"], line["lc_low"], line["lc_high"]
        assert found == pytest.approx([100 * x for x in expected[:3]], nan_ok=True)
    text = lengths_shown(cells)
    one = cells.query("method == 'PLC-DPO' and judge == 'long' and decoding == 'greedy'").iloc[0]
    assert text.loc["PLC-DPO", ("long, greedy", "WR at equal lengths")].startswith(
        f"{one['lc']:.1f} ["
    )


def test_the_commercial_judges_table_is_the_papers_with_ones_own_numbers(made):
    runs, evaluation = made
    for decoding in DECODINGS:
        shown = commercial_table(evaluation, decoding)
        assert shown.columns.tolist()[:4] == [
            ("gold", f"world (n={N})", "Single"), ("gold", f"world (n={N})", "WR of scores"),
            ("long", f"world (n={N})", "Single"), ("long", f"world (n={N})", "WR"),
        ]  # fmt: skip
        for judge in ("gold", "long"):
            own = {m: rewards(runs, m, judge, decoding) for m in METHODS}
            for method, values in own.items():
                text = shown.loc[method, (judge, f"world (n={N})", "Single")]
                assert (
                    text.replace("*", "")
                    .replace("†", "")
                    .startswith(minus(f"{values.mean():.3f} ["))
                )
            ranked = shown[judge, f"world (n={N})", "Single"].str
            best = max(own, key=lambda method: round(own[method].mean(), 3))
            assert best in shown.index[ranked.contains("*", regex=False)]
        stored = read(runs["PLC-DPO"], "judgements/long-world-against-run0.parquet")
        won = 100 * stored[stored["decoding"] == decoding]["win"].mean()
        mark = "*" if round(won, 2) >= 50 else "†"
        wr = shown["long", f"world (n={N})", "WR"]
        assert wr["PLC-DPO"].startswith(f"{won:.2f}{mark} [")
        assert wr["DPO"].rstrip("*†") == "50.00"
        gold = [rewards(runs, m, "gold", decoding) for m in ("PLC-DPO", "DPO")]
        won = 100 * ((np.sign(gold[0] - gold[1]) + 1) / 2).mean()
        of_scores = shown["gold", f"world (n={N})", "WR of scores"]
        assert of_scores["PLC-DPO"].split(" ")[0].rstrip("*†") == f"{won:.2f}"
        assert of_scores["ROPO"] == "–"  # published, and not asked here
    source = shared_file("paper/plc-dpo.tex").read_text()
    body = source[source.index("Commercial-model judge validation for Qwen2.5-7B") :]
    printed = {}
    for line in body[: body.index("bottomrule")].split("\n    \\midrule")[1].splitlines():
        name, *values = (part.strip(" \\") for part in line.split("&"))
        if values:
            values = [re.sub(r"\\?textbf\{(.*)\}", r"\1*", value) for value in values]
            values = [re.sub(r"\\?underline\{(.*)\}", r"\1†", value) for value in values]
            printed[name.replace("$\\gamma$", "γ")] = values
    paper = shown[PAPER]
    heads = ("AlpacaEval 2 (n=200)", "Vicuna (n=80)")
    assert paper.columns.tolist() == [(h, what) for h in heads for what in ("Single", "WR")]
    assert {method: list(row) for method, row in paper.T.items()} == printed
    assert list(printed) == ["DPO", "rDPO", "γ-PO", "ROPO", "PLC-DPO"]


def test_prompts_that_are_left_out_are_told_at_equal_lengths_too(made):
    _, evaluation = made
    gone = evaluation.judged["method"].eq("PLC-DPO") & evaluation.judged["prompt_id"].eq(
        evaluation.judged["prompt_id"].iloc[0]
    )
    part = replace(evaluation, judged=evaluation.judged[~gone])
    with pytest.raises(JoinError, match=r"PLC-DPO, seed 0: The two sides answer different"):
        length_controlled_cells(part)
    cells = length_controlled_cells(replace(part, incomplete="common"))
    by_method = cells[cells["judge"] != "long, side by side"].set_index("method")
    assert set(by_method.loc["PLC-DPO", "n"]) == {N - 1}
    assert by_method.loc["PLC-DPO", "note"].str.startswith(f"{N - 1} of {N} prompts").all()
    assert not by_method.drop(index="PLC-DPO")["note"].str.contains("prompts compared").any()


def test_the_four_forms_say_the_same(made):
    """The data frame's numbers are those of the CSV, and as rounded those of the others."""
    _, evaluation = made
    greedy = only(evaluation, judge="gold", decoding="greedy").results()
    rows = greedy[greedy["win_rate"].notna()]
    table = win_table(rows)
    again = pd.read_csv(io.StringIO(table.csv()))
    np.testing.assert_allclose(again["win_rate"], rows["win_rate"])
    for line in rows.to_dict("records"):
        shown = f"{line['win_rate']:.1f}"
        for text in (table.frame().to_string(), table.markdown(), table.latex()):
            assert shown in text

"""The paper's table of its commercial judge (`tab:commercial-judge-validation`), with one's own."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from notebooks.studies.win_rate_study import BENCHMARK_NAMES, DPO
from plc_core.analysis.paper import published
from plc_core.evaluation.comparison import SFT, Evaluation
from plc_core.evaluation.results import interval

PAPER = "paper, Claude Sonnet 4.6"
"""The head of the published columns."""
_SINGLE, _WIN_RATE, _OF_SCORES = "Single", "WR", "WR of scores"
_MARKS = {"best": "*", "second": "†"}


def commercial_table(evaluation: Evaluation, decoding: str = "greedy") -> pd.DataFrame:
    """A row a method; for each judge and benchmark the mean single score and the win rate against
    DPO, as published, and the published numbers behind one's own.

    Best * and second best † of a column. Intervals are 95 %, over prompts; over seeds, mean ± sd.
    The WR is of verdicts on two answers side by side, as in the paper; of a judge that was asked
    for single scores only, the "WR of scores" counts which answer's is higher. DPO's own is 50.

    Args:
        evaluation: judged answers, and verdicts of pairwise judges if any were asked.
        decoding: greedy, as in the paper, or sampled.
    """
    methods = [m for m in evaluation.methods if m != SFT and not m.startswith(f"{DPO} ")]
    cells = evaluation.cells()
    scored, of_scores, pairwise = (
        rows[rows["decoding"] == decoding] if len(rows) else cells.iloc[:0]
        for rows in (evaluation.rewards(), cells, evaluation.verdict_cells())
    )
    columns: dict[tuple[str, str, str], dict[str, str]] = {}
    for judge in dict.fromkeys([*scored["judge"], *pairwise["judge"]]):
        for benchmark in dict.fromkeys(scored["benchmark"]):
            scores, from_scores, verdicts = (
                rows[(rows["judge"] == judge) & (rows["benchmark"] == benchmark)]
                for rows in (scored, of_scores, pairwise)
            )
            rates = verdicts if len(verdicts) else from_scores
            counts = ", ".join(f"{n:,}" for n in sorted(set(rates["n"])))
            head = (str(judge), f"{_paper_name(benchmark)} (n={counts})")
            if len(scores):
                bounds = ("reward", "low", "high")
                columns[*head, _SINGLE] = _column(scores, methods, bounds, 3)
            label = _WIN_RATE if len(verdicts) else _OF_SCORES
            columns[*head, label] = _column(rates, methods, ("win_rate", "low", "high"), 2)
    paper = published("commercial_judge")
    for (benchmark, n), part in paper.groupby(["benchmark", "n"], sort=False):
        head = (PAPER, f"{benchmark} (n={n})")
        for label, number, mark, digits in (
            (_SINGLE, "single_score", "single_mark", 3),
            (_WIN_RATE, "win_rate", "mark", 2),
        ):
            columns[*head, label] = {
                line["method"]: f"{line[number]:.{digits}f}{_MARKS.get(line[mark], '')}"
                for line in part.to_dict("records")
            }
    index = pd.Index(dict.fromkeys([*paper["method"], *methods]), name="method")
    return pd.DataFrame(columns, index=index).fillna("–")


def _column(
    rows: pd.DataFrame, methods: Sequence[str], bounds: tuple[str, str, str], digits: int
) -> dict[str, str]:
    parts = {method: rows[rows["method"] == method] for method in methods}
    means = pd.Series({method: part[bounds[0]].mean() for method, part in parts.items()})
    texts = {method: interval(part, *bounds, digits) for method, part in parts.items()}
    if bounds[0] == "win_rate":
        means[DPO], texts[DPO] = 50.0, f"{50:.{digits}f}"  # printed so; against itself
    ranks = means.round(digits).rank(method="dense", ascending=False)
    for method, rank in ranks.items():
        number, space, rest = texts[str(method)].partition(" ")
        mark = {1.0: _MARKS["best"], 2.0: _MARKS["second"]}.get(rank, "")
        texts[str(method)] = f"{number}{mark}{space}{rest}"
    return texts


def _paper_name(benchmark: str) -> str:
    """The paper's name of a benchmark, also of its first prompts, or its own."""
    names = {name: paper for paper, name in BENCHMARK_NAMES.items()}
    return names.get(re.sub(r"-first-\d+$", "", benchmark), benchmark)

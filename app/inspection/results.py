"""What a run came to, in a few numbers for a list of runs."""

from __future__ import annotations

import math

from inspection.database import query
from inspection.judged_answers import (
    judgement_files,
    log_ratios,
    read_judgements,
    refuse_earlier,
)
from plc_core.runs import Run
from plc_core.runs.records import refuse_lost
from plc_core.storage.files import table_names

DECODINGS = ("sampled", "greedy")
RESULTS = ("accuracy", *(f"reward, {name}" for name in DECODINGS), "KL")


def results_of(run: Run) -> dict[str, float]:
    """The run's `RESULTS`; NaN for what it has not (yet).

    accuracy: share of training pairs with m > 0, mean of the last tenth of the steps. reward: mean
    reward of the trained policy's sampled and of its greedy answers by its first file of scores.
    KL: of the sampled answers to the reference, in nats per response.

    Raises:
        RunError: for a file that cannot be read, that the run had and that is gone, or that is an
            earlier copy.
    """
    found = dict.fromkeys(RESULTS, math.nan)
    metrics = run.metrics_file()
    if metrics is not None and {"step", "accuracy"} <= set(table_names(metrics)):
        sql = (
            "SELECT avg(accuracy) AS v FROM (SELECT accuracy FROM read_parquet($1) ORDER BY step "
            "DESC LIMIT (SELECT ceil(count(*) / 10)::INT FROM read_parquet($1)))"
        )
        found["accuracy"] = _number(query(sql, [str(metrics)])["v"][0].as_py())
    scored = [name for name, kind in judgement_files(run).items() if kind == "scores"]
    if scored:
        refuse_earlier(run, scored[0])
        table = read_judgements(run, scored[0])
        for name in DECODINGS:
            found[f"reward, {name}"] = float(table[table["decoding"] == name]["reward"].mean())
        found["KL"] = float(log_ratios(run, scored[0]).mean())
    else:
        refuse_lost(run.path / "generations")
    return found


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)

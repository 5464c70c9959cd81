"""Evaluation in the embedded world, where the judge is the truth."""

from __future__ import annotations

import pandas as pd

from plc_core.evaluation.comparison import compare_rewards
from plc_core.evaluation.judges import judge_world
from plc_core.evaluation.world_generations import generate_world
from plc_core.runs import Run


def evaluate(run: Run, prompts: int) -> pd.DataFrame:
    """Generate, judge and tabulate a run of the world; for any other model, the reason why not.

    Args:
        run: a finished training run.
        prompts: how many held-out prompts to answer; 0 skips the evaluation.
    """
    if run.info["config"]["model"] != "world":
        return pd.DataFrame({"not evaluated": ["only the embedded world has a gold reward"]})
    if not prompts:
        return pd.DataFrame({"not evaluated": ["eval_prompts is 0"]})
    generate_world(run, prompts)
    judge_world(run)
    table = compare_rewards([run], run).drop(columns=["run", "against_baseline", "against_control"])
    for column in ("reward", "against_reference", "kl"):
        table[column] = ["–" if value is None else str(value) for value in table[column]]
    return table

"""Rewards and log-ratios of runs on any benchmarks by any judge, made where they are missing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from plc_core.evaluation.chain import evaluate_runs
from plc_core.evaluation.completeness import EvaluationConfig
from plc_core.evaluation.judged import Evaluation
from plc_core.evaluation.methods import Contestant
from plc_core.runs import Run

_ITSELF = "run"  # the one method of an evaluation of one run


class ChainJudged:
    """What `kl_matching.Judged` asks for, by the chain of generation and judgement.

    Prompts are named benchmark/prompt_id, so that those of several benchmarks go together. Answers
    and judgements are kept in the run folders and made once.

    Args:
        config: benchmarks, judges (the first one counts) and decodings.
    """

    def __init__(self, config: EvaluationConfig) -> None:
        self.config = config
        self._known: dict[Path, Evaluation] = {}

    def rewards(self, run: Run, decoding: str) -> pd.Series:
        """Rewards of the trained policy's answers by benchmark/prompt_id."""
        rows = self._judged(run)
        rows = rows[rows["decoding"] == decoding]
        return rows.set_index(_names(rows))["reward"]

    def log_ratios(self, run: Run) -> pd.Series:
        """log(pi/pi_ref) of the sampled answers, nats, by benchmark/prompt_id."""
        rows = self._evaluation(run).log_ratios
        return rows.set_index(_names(rows))["log_ratio"]

    def benchmarks(self, run: Run) -> dict[str, str]:
        """The benchmark of each prompt, by benchmark/prompt_id."""
        rows = self._judged(run)
        return dict(zip(_names(rows), rows["benchmark"], strict=True))

    def _judged(self, run: Run) -> pd.DataFrame:
        judged = self._evaluation(run).judged
        return judged[judged["method"] == _ITSELF]

    def _evaluation(self, run: Run) -> Evaluation:
        if run.path not in self._known:
            self._known[run.path] = evaluate_runs(
                [Contestant(_ITSELF, run)], self.config, baseline=_ITSELF
            )
        return self._known[run.path]


def _names(rows: pd.DataFrame) -> pd.Index:
    return pd.Index(rows["benchmark"] + "/" + rows["prompt_id"])

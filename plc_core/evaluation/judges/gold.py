"""The embedded world's judge, which is the truth."""

from __future__ import annotations

from typing import Any

import pandas as pd

from plc_core.data.world import gold_reward, world_fingerprint
from plc_core.evaluation.judges.judgements import Score, score_generations
from plc_core.files import RunError
from plc_core.progress import Progress
from plc_core.runs import Run


class GoldJudge:
    """The exact reward of answers to prompts of the world."""

    name = "gold"

    @property
    def record(self) -> dict[str, Any]:
        """The world's version."""
        return {"judge": "the world's gold reward", "world": world_fingerprint()}

    def score(self, answers: pd.DataFrame, progress: Progress | None = None) -> list[Score]:
        """The gold reward of each row of generations.

        Raises:
            RunError: for a prompt that is none of the world's.
        """
        try:
            return [
                Score(gold_reward(prompt, response, bool(finished)))
                for prompt, response, finished in zip(
                    answers["prompt"], answers["response"], answers["finished"], strict=True
                )
            ]
        except ValueError as error:
            raise RunError(f"The gold judge knows the world's prompts only: {error}") from None


def judge_world(run: Run) -> pd.DataFrame:
    """Give every response in generations/world.parquet its gold reward.

    Writes judgements/gold-world.parquet, as every judge's scores.
    """
    return score_generations(run, "world", GoldJudge())

"""What a response is worth: the world's gold reward."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from plc_core.data.world import gold_reward
from plc_core.files import write_table
from plc_core.runs import Run


def judge_world(run: Run) -> pd.DataFrame:
    """Give every response in generations/world.parquet its gold reward.

    Writes judgements/gold-world.parquet: prompt_id, policy, decoding, reward.
    """
    generations = run.table("generations/world.parquet")
    rewards = [
        gold_reward(prompt, response, finished)
        for prompt, response, finished in zip(
            generations["prompt"], generations["response"], generations["finished"], strict=True
        )
    ]
    judgements = generations[["prompt_id", "policy", "decoding"]].assign(reward=rewards)
    (run.path / "judgements").mkdir(exist_ok=True)
    write_table(
        run.path / "judgements" / "gold-world.parquet",
        pa.Table.from_pandas(judgements, preserve_index=False),
    )
    return judgements

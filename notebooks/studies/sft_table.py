"""What a model of the embedded world earns by greedy answers."""

from __future__ import annotations

import pandas as pd

from plc_core.analysis.statistics import bootstrap_mean
from plc_core.data.world import RESPONSE_TOKENS, gold_reward
from plc_core.data.world.prompts import held_out_prompts
from plc_core.engine.models import load_policy
from plc_core.engine.sampling import generate
from plc_core.engine.tokens import prompt_ids
from plc_core.runs import Run


def greedy_rewards(model: str, prompts: int) -> pd.Series:
    """Gold rewards of a model's greedy answers to the first held-out prompts, by prompt.

    Args:
        model: a local folder, or "world".
        prompts: how many; 0 gives an empty series.
    """
    texts = [prompt.text for prompt in held_out_prompts(prompts)]
    if not texts:
        return pd.Series(dtype="float64", name="reward")
    policy, tokenizer = load_policy(model)
    ids = [prompt_ids(tokenizer, [{"role": "user", "content": text}]) for text in texts]
    answers = generate(policy, tokenizer, ids, "greedy", RESPONSE_TOKENS, seed=0)
    rewards = [gold_reward(t, a.text, a.finished) for t, a in zip(texts, answers, strict=True)]
    return pd.Series(rewards, index=pd.Index(texts, name="prompt"), name="reward")


def sft_table(run: Run) -> pd.DataFrame:
    """What a supervised run learnt: held-out loss, and in the world what its greedy answers earn.

    The interval is 95 %, over prompts; beside it stands the world's own supervised checkpoint.
    """
    loss, data = run.info["held_out_loss"], run.info["data"]
    rows = {"conversations": f"{data['train']:,} to train on, {data['held_out']:,} held out"}
    for when in ("before", "after"):
        value = loss[when]
        shown = "nothing was held out" if value is None else f"{value:.3f}"
        rows[f"held-out loss {when}, nats a token"] = shown
    prompts = run.info["config"]["eval_prompts"]
    if run.info["config"]["data"] == "world" and prompts:
        own = greedy_rewards(str(run.path / "model"), prompts)
        rows["gold reward, greedy"] = str(bootstrap_mean(own, seed=0))
        rows["the shipped checkpoint's"] = str(bootstrap_mean(greedy_rewards("world", prompts), 0))
    return pd.Series(rows, name=run.name).to_frame()

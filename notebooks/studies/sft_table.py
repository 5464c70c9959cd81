"""What a supervised run learnt; in the embedded world, what its greedy answers earn."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from plc_core.analysis.statistics import MeanInterval, bootstrap_mean
from plc_core.batch.report_order import FINDING
from plc_core.data.world import RESPONSE_TOKENS, gold_reward
from plc_core.data.world.prompts import held_out_prompts
from plc_core.engine.models.load import load_policy
from plc_core.engine.sampling import generate_responses
from plc_core.engine.tokens.tokenized import prompt_ids
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
    answers = generate_responses(policy, tokenizer, ids, "greedy", RESPONSE_TOKENS, seed=0)
    rewards = [gold_reward(t, a.text, a.finished) for t, a in zip(texts, answers, strict=True)]
    return pd.Series(rewards, index=pd.Index(texts, name="prompt"), name="reward")


def sft_rewards(run: Run) -> dict[str, MeanInterval]:
    """What greedy answers to held-out prompts of the world earn: the run's, and the checkpoint's.

    The intervals are 95 %, over prompts; "world" is the project's own supervised checkpoint.
    Nothing where the run did not learn from the world, or asked for no prompts.
    """
    config = run.info["config"]
    if config["data"] != "world" or not config["eval_prompts"]:
        return {}
    models = {"own": str(run.path / "model"), "world": "world"}
    return {
        name: bootstrap_mean(greedy_rewards(model, config["eval_prompts"]), seed=0)
        for name, model in models.items()
    }


def sft_table(run: Run, rewards: Mapping[str, MeanInterval]) -> pd.DataFrame:
    """What a supervised run learnt: held-out loss, and `rewards` of `sft_rewards`."""
    loss, data = run.info["held_out_loss"], run.info["data"]
    rows = {"conversations": f"{data['train']:,} to train on, {data['held_out']:,} held out"}
    for when in ("before", "after"):
        value = loss[when]
        shown = "nothing was held out" if value is None else f"{value:.3f}"
        rows[f"held-out loss {when}, nats per token"] = shown
    if rewards:
        rows["gold reward, greedy"] = str(rewards["own"])
        rows["the shipped checkpoint's"] = str(rewards["world"])
    return pd.Series(rows, name=run.name).to_frame()


def sft_found(run: Run, rewards: Mapping[str, MeanInterval]) -> str:
    """What a supervised run learnt, in a sentence, as Markdown: the report begins with it."""
    loss = run.info["held_out_loss"]
    if loss["after"] is None:
        said = "No conversation was held out, so the loss on new ones is not known"
    else:
        down = loss["after"] < loss["before"]
        said = f"The loss on held-out conversations {'fell' if down else 'did not fall'}: "
        said += f"{loss['before']:.3f} before, {loss['after']:.3f} nats per token after training"
    if rewards:
        own, world = rewards["own"], rewards["world"]
        said += f"; greedy answers earn {own.mean:.2f} [{own.low:.2f}, {own.high:.2f}], "
        said += f"those of the shipped checkpoint {world.mean:.2f} [{world.low:.2f}, "
        said += f"{world.high:.2f}]"
    return f"**{said}.**{FINDING}"

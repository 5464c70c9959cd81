"""A judge by a name that fits into a notebook's parameters, the world's gold reward among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from plc_core.data.world import gold_reward, world_fingerprint
from plc_core.evaluation.benchmarks import GOLD, WORLD
from plc_core.evaluation.chat_api import ChatServer
from plc_core.evaluation.judges.judgements import Score, file_name
from plc_core.evaluation.judges.language_model import LLMJudge
from plc_core.evaluation.judges.reward_model import RewardModelJudge
from plc_core.evaluation.methods import short_name
from plc_core.progress import Progress
from plc_core.storage.files import RunError


class GoldJudge:
    """The exact reward of answers to prompts of the world, which is the truth there."""

    name = GOLD

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


Judge = GoldJudge | RewardModelJudge | LLMJudge


def named_judge(name: str) -> Judge:
    """The judge of a name.

    Args:
        name: "gold" of the embedded world; "anthropic:<model>"; "openai:<model>@<base URL>" for any
            compatible server; or a reward model, a local folder or a name on the hub. The first
            two may end in "?price=3/15", of a million input and of a million output tokens: then
            the record of an evaluation has the cost.

    Raises:
        RunError: for a server without an address, or a price that is none.
        ModelError: where there is no such reward model.
    """
    if name == GOLD:
        return GoldJudge()
    api, _, rest = name.partition(":")
    asked, _, price = rest.partition("?price=")
    if api == "anthropic":
        return LLMJudge(ChatServer(asked), price=_price(name, price))
    if api == "openai":
        model, _, address = asked.partition("@")
        if not address:
            raise RunError(f"The judge {name!r} needs an address, as openai:{model}@http://…/v1.")
        return LLMJudge(ChatServer(model, address, "openai"), price=_price(name, price))
    return RewardModelJudge(name, name=short_name(name))


def benchmark_for(judge: str) -> str | None:
    """The one benchmark whose answers a judge can judge; None where it judges any."""
    return WORLD if judge == GOLD else None


def judge_file(name: str) -> str:
    """The name in files of the judge of a name, which need not be there for it."""
    api, _, rest = name.partition(":")
    asked = rest.partition("?price=")[0]
    if api == "anthropic":
        return file_name(asked)
    if api == "openai":
        return file_name(asked.partition("@")[0])
    return file_name(short_name(name))


def check_judges(names: Sequence[str]) -> None:
    """RunError where two judges would write the same files."""
    files = [judge_file(name) for name in names]
    if twice := [file for file in files if files.count(file) > 1]:
        raise RunError(
            f"Two of the judges {', '.join(names)} have one name in files, {twice[0]!r}; ask one "
            "of them in an evaluation of its own."
        )


def _price(name: str, text: str) -> tuple[float, float] | None:
    if not text:
        return None
    try:
        per_input, per_output = (float(part) for part in text.split("/"))
    except ValueError:
        per_input = per_output = math.nan
    if not (0 <= per_input < math.inf and 0 <= per_output < math.inf):
        raise RunError(
            f"The judge {name!r} needs a price as ?price=3/15, of a million input tokens and of a "
            f"million output tokens, not {text!r}."
        )
    return per_input, per_output

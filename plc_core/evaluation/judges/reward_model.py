"""A sequence-classification reward model as judge, by itself on this machine."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import torch

from plc_core.data import DataError, Pairs
from plc_core.engine.models.load import DTYPES, model_identity
from plc_core.engine.stages.reward_scoring import (
    RewardModel,
    dialogue_ids,
    load_reward_model,
    score_ids,
)
from plc_core.evaluation.judges.judgements import Score, file_name
from plc_core.progress import Progress
from plc_core.storage.cache import ContentStore, content_hash
from plc_core.storage.files import RunError

SKYWORK = "Skywork/Skywork-Reward-V2-Llama-3.1-8B"
"""The paper's judge."""
_REVISIONS = {SKYWORK: "cba2f842f3f1af2f1b2f0d35e794d789976390c5"}  # data/README.md says why

_BATCH_TOKENS = {"cpu": 1024}
_KEPT = pa.schema({"key": pa.string(), "reward": pa.float64()})


class RewardModelJudge:
    """A reward model with one output, as `AutoModelForSequenceClassification` loads it.

    Rewards are kept in the cache by weights and tokens, batch by batch.

    Args:
        model: a local folder, or a name on the hub, as `SKYWORK`.
        dtype: "bf16" or "fp32"; by itself as the weights are stored, and fp32 without a GPU.
        device: by itself a GPU, if there is one.
        batch_tokens: of a batch, padding included; answers of like length are scored together. By
            itself 16,384, and 1,024 on a CPU, whose caches larger ones leave.
        name: of the files with its judgements; by itself the last part of the model's.
        revision: of a model on the hub; that of `SKYWORK` is pinned.

    Raises:
        ModelError: where there is no such model, it lacks weights, has more than one output, or no
            chat template.
    """

    def __init__(
        self,
        model: Path | str = SKYWORK,
        dtype: str | None = None,
        device: str | None = None,
        batch_tokens: int | None = None,
        name: str | None = None,
        revision: str | None = None,
    ) -> None:
        self.revision = revision or _REVISIONS.get(str(model))
        self.model, self.tokenizer = load_reward_model(str(model), dtype, self.revision)
        self.model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))  # type: ignore[arg-type]
        self.batch_tokens = batch_tokens or _BATCH_TOKENS.get(self.model.device.type, 16384)
        self.name = file_name(name or Path(model).name)
        settings = {"model": model_identity(self.model)}
        self._store = ContentStore("rewards", settings, _KEPT)
        self.record: dict[str, Any] = {
            "judge": str(model),
            "revision": self.revision,
            "weights": settings["model"],
            "dtype": next(name for name, kind in DTYPES.items() if kind == self.model.dtype),
        }

    def score(self, answers: pd.DataFrame, progress: Progress | None = None) -> list[Score]:
        """The reward of each row of generations: its conversation ended by the response.

        Raises:
            RunError: naming prompt ids, where the template cannot write a conversation, one is
                longer than the model takes, or a reward is no number.
        """
        ids = self._tokens(answers)
        names = [str(name) for name in answers["prompt_id"]]
        longest = getattr(self.model.config.get_text_config(), "max_position_embeddings", math.inf)
        if long := [name for name, row in zip(names, ids, strict=True) if len(row) > longest]:
            raise RunError(
                f"{len(long):,} of {len(names):,} answers are longer with their prompt than the "
                f"{longest:,} tokens that {self.name!r} takes: {_listed(long)}."
            )
        keys = [content_hash(row) for row in ids]
        left = list({key: i for i, key in enumerate(keys) if key not in self._store}.values())
        broken: set[str] = set()
        with (
            (progress or Progress()).phase(f"rewards of {self.name}", len(left)) as advance,
            self._store.adding() as add,
        ):
            reward = RewardModel(self.model, self.tokenizer)
            for places, rewards in score_ids(reward, [ids[i] for i in left], self.batch_tokens):
                found = [(keys[left[n]], value) for n, value in zip(places, rewards, strict=True)]
                add({"key": key, "reward": value} for key, value in found if math.isfinite(value))
                broken |= {key for key, value in found if not math.isfinite(value)}
                advance(len(places))
        if broken:
            bad = [name for name, key in zip(names, keys, strict=True) if key in broken]
            raise RunError(
                f"The reward model {self.name!r} gave {len(bad):,} of {len(names):,} answers a "
                f"reward that is no finite number: {_listed(bad)}."
            )
        return [Score(self._store[key]["reward"]) for key in keys]

    def unscored(self, answers: pd.DataFrame) -> int:
        """How many rows of generations have no reward in the cache."""
        return sum(content_hash(row) not in self._store for row in self._tokens(answers))

    def _tokens(self, answers: pd.DataFrame) -> list[list[int]]:
        """The ids of each conversation with its answer, as the model's chat template writes it."""
        sides = zip(answers["conversation"], answers["response"], strict=True)
        dialogues = [
            [*json.loads(conversation), {"role": "assistant", "content": response}]
            for conversation, response in sides
        ]
        names = [f"The answer to prompt {name!r}" for name in answers["prompt_id"]]
        try:
            return dialogue_ids(self.tokenizer, dialogues, names)
        except DataError as error:
            raise RunError(str(error)) from None


def _listed(names: Sequence[str], count: int = 5) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - count:,} more" if len(unique) > count else ""
    return f"prompts {', '.join(unique[:count])}{more}"


def pair_rewards(pairs: Pairs, model: str, make: bool = True) -> pd.DataFrame:
    """The rewards that a sequence-classification model gives both answers of each pair.

    Args:
        model: a reward model's folder, or its name on the hub.
        make: whether answers that it has not scored yet are scored.

    Returns:
        One row a pair: pair_id, reward_chosen, reward_rejected.

    Raises:
        RunError: unless `make`, with the number of answers without a score.
    """
    judge = RewardModelJudge(model)
    table = pairs.table.select(["pair_id", "prompt", "chosen", "rejected"]).to_pandas()
    conversation = [json.dumps([dict(turn) for turn in prompt]) for prompt in table["prompt"]]
    found = {"pair_id": table["pair_id"]}
    for side in ("chosen", "rejected"):
        answers = pd.DataFrame(
            {
                "prompt_id": table["pair_id"],
                "conversation": conversation,
                "response": table[side],
            }
        )
        if not make and (left := judge.unscored(answers)):
            raise RunError(
                f"{left:,} of {len(answers):,} {side} answers have no score of {judge.name!r}. Set "
                "make to true to have them scored."
            )
        found[f"reward_{side}"] = pd.Series([score.value for score in judge.score(answers)])
    return pd.DataFrame(found)

"""A sequence-classification reward model as judge, by itself on this machine."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plc_core.engine.models import (
    ModelError,
    at_revision,
    disable_dropout,
    load_classifier,
    model_identity,
    tokenizer_and_path,
)
from plc_core.engine.templates import CannotRenderError, chat_format, render
from plc_core.evaluation.judges.judgements import Score, file_name
from plc_core.evaluation.store import ContentStore, content_hash
from plc_core.files import RunError
from plc_core.progress import Progress

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
        dtype: "bf16" or "fp32".
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
        dtype: str = "bf16",
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
            "dtype": dtype,
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
            pad = _padding(self.model, self.tokenizer, ids)
            for batch in _batches(left, [len(row) for row in ids], self.batch_tokens):
                rewards = self._rewards([ids[i] for i in batch], pad)
                found = list(zip((keys[i] for i in batch), rewards, strict=True))
                add({"key": key, "reward": r} for key, r in found if math.isfinite(r))
                broken |= {key for key, r in found if not math.isfinite(r)}
                advance(len(batch))
        if broken:
            bad = [name for name, key in zip(names, keys, strict=True) if key in broken]
            raise RunError(
                f"The reward model {self.name!r} gave {len(bad):,} of {len(names):,} answers a "
                f"reward that is no finite number: {_listed(bad)}."
            )
        return [Score(self._store[key]["reward"]) for key in keys]

    def _tokens(self, answers: pd.DataFrame) -> list[list[int]]:
        """The ids of each conversation with its answer, as the model's chat template writes it."""
        chat = chat_format(self.tokenizer)
        whole = [
            chat.folded([*json.loads(conversation), {"role": "assistant", "content": response}])
            for conversation, response in zip(
                answers["conversation"], answers["response"], strict=True
            )
        ]
        plain = [number for number, turns in enumerate(whole) if not chat.spells_special(turns)]
        rows: dict[int, list[int]] = {}
        # All at once takes half the time; those that spell special tokens, or where one of all
        # cannot be written, are written one by one.
        with contextlib.suppress(CannotRenderError):
            texts = render(self.tokenizer, [whole[number] for number in plain])
            if texts:
                encoded = self.tokenizer(texts, add_special_tokens=False, verbose=False)[
                    "input_ids"
                ]
                rows = dict(zip(plain, encoded, strict=True))
        for number, turns in enumerate(whole):
            if number in rows:
                continue
            try:
                rows[number] = chat.ids(turns, literal=chat.spells_special(turns))
            except CannotRenderError as error:
                raise RunError(
                    f"The chat template of {self.name!r} cannot write the answer to prompt "
                    f"{answers['prompt_id'].iloc[number]!r}: {error}."
                ) from None
        return [rows[number] for number in range(len(whole))]

    @torch.inference_mode()
    def _rewards(self, rows: Sequence[list[int]], pad: int) -> list[float]:
        longest = max(map(len, rows))
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        device = self.model.device
        logits = self.model(
            input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False
        ).logits
        return logits[:, 0].float().tolist()


def load_reward_model(
    model: str, dtype: str, revision: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A reward model and its tokenizer; safetensors only, and code that comes along is never run.

    Raises:
        ModelError: as `RewardModelJudge` says.
    """
    tokenizer, path = tokenizer_and_path(model, revision)
    judge, missing = load_classifier(model, path, dtype, **at_revision(revision))
    if missing:
        raise ModelError(
            f"The weights of {model!r} lack {len(missing)} tensors, as {missing[0]!r}; they would "
            "be random numbers. Is it a reward model?"
        )
    if judge.config.num_labels != 1:
        raise ModelError(
            f"{model!r} has {judge.config.num_labels} outputs; a reward model has one."
        )
    disable_dropout(judge)
    return judge.eval(), tokenizer


def _padding(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[list[int]]
) -> int:
    """The token to pad with. The reward is read at the last token that is not the model's padding.

    Where the model names none, one is named that no row ends with: the tokenizer's may be the end
    of sequence, and the reward would be read before it.
    """
    known = model.config.get_text_config().pad_token_id
    if known is not None:
        return int(known)
    ends = {row[-1] for row in rows if row}
    candidates = [tokenizer.pad_token_id, *range(len(ends) + 1)]
    pad = next(token for token in candidates if token is not None and token not in ends)
    model.config.get_text_config().pad_token_id = pad
    model.config.pad_token_id = pad
    return int(pad)


def _batches(numbers: Sequence[int], sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Numbers by falling size, in batches of at most `most` tokens with the padding."""
    batch: list[int] = []
    for number in sorted(numbers, key=lambda i: -sizes[i]):
        # The first of a batch is its longest.
        if batch and (len(batch) + 1) * sizes[batch[0]] > most:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _listed(names: Sequence[str], count: int = 5) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - count:,} more" if len(unique) > count else ""
    return f"prompts {', '.join(unique[:count])}{more}"

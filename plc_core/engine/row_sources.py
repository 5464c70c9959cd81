"""Where a run's pairs, exact ties and conversations come from: rows that are read, or the world."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plc_core.data import DATASETS, DataError, Pairs, load_pairs, pairs_from_rows
from plc_core.data.corruption import tie_pool
from plc_core.data.exact_ties import pair_of
from plc_core.data.folders import local_files
from plc_core.data.formats import rows_of_file
from plc_core.data.world import (
    RESPONSE_TOKENS,
    WORLD,
    gold_reward,
    world_fingerprint,
    write_response,
)
from plc_core.data.world.prompts import training_prompt, training_prompts
from plc_core.engine.config import DataConfig, SftConfig, TrainConfig
from plc_core.engine.models.load import load_policy, model_identity
from plc_core.engine.sampling import generate_responses
from plc_core.engine.stages.conversations import Row
from plc_core.engine.tokens.tokenized import prompt_ids
from plc_core.progress import Progress
from plc_core.storage.cache import cached_table
from plc_core.storage.paths import project_path

Sampler: TypeAlias = tuple[PreTrainedModel, PreTrainedTokenizerBase]
"""The policy that answers, and its tokenizer."""

WORLD_PAIRS = 6144
"""The default number of prompts: 96 optimizer steps of 64 pairs."""

_CONVERSATIONS = 19_200
_TIE_SAMPLES = 12
_PAIRS = pa.schema(
    [(name, pa.string()) for name in ("prompt", "chosen", "rejected")]
    + [(name, pa.float64()) for name in ("score_chosen", "score_rejected")]
)
_RESPONSES = pa.schema(
    [("prompt", pa.string()), ("response", pa.string()), ("score", pa.float64())]
)


@dataclass(frozen=True)
class ReadSource:
    """Rows that are read: a public dataset by name, or a file or folder.

    Attributes:
        name: as the user says it.
        revision: of a public dataset, instead of the pinned one.
        scores_are_true: whether the scores are the truth, so that every pair has an oracle state.
        in_order: whether conversations come in the order in which they are to be learnt.
    """

    name: str
    revision: str | None = None
    scores_are_true: bool = False
    in_order: bool = False

    def load(self, config: DataConfig, progress: Progress) -> Pairs:
        """The validated pairs, before any corruption; DataError where they cannot be read."""
        files, prompts = config.data_files, config.evaluation_prompts
        return load_pairs(
            self.name if self.name in DATASETS else project_path(self.name),
            config.num_pairs,
            split=config.data_split,
            files=None if files is None else project_path(files),
            revision=self.revision,
            columns=config.data_columns,
            actions=config.data_actions,
            bounds=config.data_bounds,
            evaluation_prompts=() if prompts is None else project_path(prompts),
            progress=progress,
        )

    def load_conversations(self, config: SftConfig) -> tuple[Iterator[Row], int]:
        """Raw conversations, and how many they are; 0 where that is not known."""
        rows = conversation_rows(self.name, config.data_split, self.revision)
        return islice(rows, config.num_rows), config.num_rows or 0


@dataclass(frozen=True)
class WorldSource:
    """The embedded world, as a `ReadSource`: pairs and ties are sampled, conversations written.

    Attributes:
        sampler: whose answers become pairs; None loads the world's own starting policy.
    """

    sampler: Sampler | None = None
    name: str = WORLD
    scores_are_true: bool = True
    in_order: bool = True

    def load(self, config: DataConfig, progress: Progress) -> Pairs:
        """The pairs of a run's seed."""
        return self.pairs(config.num_pairs, config.seed, progress)

    def load_conversations(self, config: SftConfig) -> tuple[Iterator[Row], int]:
        """The conversations of a run's seed, in the order in which they are to be learnt."""
        count = config.num_rows or _CONVERSATIONS
        return world_rows(count, config.seed, config.rows_per_forward), count

    def pairs(self, count: int | None, seed: int, progress: Progress) -> Pairs:
        """Up to `count` clean pairs: two samples at temperature 1 for each of as many prompts.

        The response with the larger gold reward is chosen; equal rewards are ordered at random;
        the same text twice is left out. Kept on disk by the world, the policy, count and seed.
        """
        count = count or WORLD_PAIRS
        sampler = self.sampler or load_policy(WORLD)

        def sample() -> pa.Table:
            # Both samples of a prompt in one call, so that they differ.
            answers = _answers(sampler, training_prompts(count, seed), 2, seed, progress)
            rng = np.random.default_rng(seed)
            both = zip(answers[:count], answers[count:], strict=True)
            return pa.Table.from_pylist([_pair(*two, rng) for two in both], schema=_PAIRS)

        settings = [world_fingerprint(), model_identity(sampler[0]), count, seed, str(_PAIRS)]
        table = cached_table("world_pairs", settings, sample)
        return pairs_from_rows(table.to_pylist(), source=WORLD)

    def ties(self, after: int, seed: int, progress: Progress, prompts: int | None = None) -> Pairs:
        """A pool of exact ties for `inject_ties`: 12 samples of each prompt, matched by `tie_pool`.

        Kept on disk by the world, the policy, counts and seed.

        Args:
            after: the prompts are those that follow the first `after` of the seed, so none of them
                is a prompt of as many `pairs` of it, nor a held-out one.
            prompts: how many; None takes enough for 30 % of `after` pairs, as one gives two ties
                on average. That does not depend on the rate, so that the ties of a lower rate are
                among those of a higher one.
        """
        count = prompts or max(1, after // 6)
        sampler = self.sampler or load_policy(WORLD)

        def sample() -> pa.Table:
            others = training_prompts(after + count, seed)[after:]
            answers = _answers(sampler, others, _TIE_SAMPLES, seed, progress)
            return pa.Table.from_pylist(answers, schema=_RESPONSES)

        settings = [world_fingerprint(), model_identity(sampler[0]), count, seed, after]
        table = cached_table("world_ties", [*settings, str(_RESPONSES)], sample)
        return tie_pool(table.to_pylist(), source=WORLD)


Source: TypeAlias = ReadSource | WorldSource


def source_of(name: str, revision: str | None = None, sampler: Sampler | None = None) -> Source:
    """The source that a parameter names: "world", a public dataset, or a file or folder.

    `sampler` answers the world's prompts, where it is loaded already.
    """
    return WorldSource(sampler) if name == WORLD else ReadSource(name, revision)


def load_ties(source: Source, config: TrainConfig, progress: Progress) -> Pairs:
    """The exact ties of the parameter `tie_pool`, or else those of the source.

    Of a public dataset, ties of two scores of 10 that may be 1, misread, are left out. The world's
    are of prompts that follow those of the run's pairs.

    Raises:
        DataError: where they cannot be read, or there are none.
    """
    name = config.tie_pool
    if name is None and isinstance(source, WorldSource):
        return source.ties(config.num_pairs or WORLD_PAIRS, config.seed, progress)
    if name is None and source.name in DATASETS:
        name = DATASETS[source.name].tie_pool
    if name is None:
        raise DataError(
            f"There are no exact ties for {source.name}: set tie_pool to a file of pairs with "
            "equal scores, or of several scored answers a prompt."
        )
    if name not in DATASETS:
        return load_pairs(project_path(name), ties=True, progress=progress)
    files = config.tie_pool_files
    return load_pairs(
        name,
        files=None if files is None else project_path(files),
        actions={"ten-was-one": "drop"},
        ties=True,
        progress=progress,
    )


def conversation_rows(data: str, split: str, revision: str | None) -> Iterator[Row]:
    """The raw rows of a local file or folder, or of a dataset of the hub.

    Raises DataError where there is no such source, or it cannot be read.
    """
    path = project_path(data)
    if path.exists() or data.startswith((".", "/", "~")) or data.count("/") != 1:
        files = [file for file in local_files(path, split) if file.split == split]
        if not files:
            raise DataError(f"{data} has no file of the split {split!r}.")
        for file in files:
            for number, value in rows_of_file(file.path):
                yield Row(file.name, number, value)
        return
    from datasets import load_dataset

    try:
        dataset = load_dataset(data, split=split, revision=revision)
    except Exception as error:  # the hub's client raises whatever its transport does
        said = str(error).splitlines()[0] if str(error) else ""
        raise DataError(
            f"The dataset {data!r} (split {split!r}) could not be read from the hub "
            f"({type(error).__name__}: {said}). Where the hub cannot be reached, name a local file."
        ) from None
    for number, value in enumerate(dataset, start=1):
        yield Row(data, number, value)


def _answers(
    sampler: Sampler, prompts: list[Any], samples: int, seed: int, progress: Progress
) -> list[dict[str, Any]]:
    """Prompt, response and gold reward of every sample: all prompts once, then all again."""
    policy, tokenizer = sampler
    texts = [prompt.text for prompt in prompts] * samples
    ids = [prompt_ids(tokenizer, [{"role": "user", "content": text}]) for text in texts]
    responses = generate_responses(
        policy, tokenizer, ids, "sampled", RESPONSE_TOKENS, seed, progress=progress
    )
    return [
        {"prompt": text, "response": r.text, "score": gold_reward(text, r.text, r.finished)}
        for text, r in zip(texts, responses, strict=True)
    ]


def _pair(one: dict[str, Any], other: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    level = one["score"] == other["score"]
    swap = other["score"] > one["score"] or (level and rng.random() < 0.5)
    chosen, rejected = (other, one) if swap else (one, other)
    return pair_of(chosen, rejected)


def world_rows(count: int, seed: int, batch: int = 32) -> Iterator[Row]:
    """`count` conversations, to be learnt in this order.

    The first fifth have flawless answers, which teach a fresh model to copy from the prompt; from
    there to two fifths the imperfect writer takes over. Within a few batches the rows lie so
    that those of a batch are of about one length, and little of it is padding.
    """
    rng = np.random.default_rng(seed)
    rows = list(_written(count, rng))
    window = 8 * batch
    for start in range(0, count, window):
        near = sorted(rows[start : start + window], key=_words)
        batches = [near[first : first + batch] for first in range(0, len(near), batch)]
        for place in rng.permutation(len(batches)):
            yield from batches[place]


def _words(row: Row) -> int:
    return sum(len(message["content"].split()) for message in row.value["messages"])


def _written(count: int, rng: np.random.Generator) -> Iterator[Row]:
    for number in range(1, count + 1):
        flawless = min(1.0, max(0.0, (0.4 - number / count) / 0.2))
        prompt = training_prompt(rng)
        answer = write_response(prompt, rng, flawless)
        turns = [("user", prompt.text), ("assistant", answer)]
        value = {"messages": [{"role": role, "content": text} for role, text in turns]}
        yield Row(WORLD, number, value)

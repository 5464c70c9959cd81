"""Answers of a policy to a benchmark, turn by turn; what is known already is not asked again."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from plc_core.data.dialogues import Turn
from plc_core.data.pairs import DataError
from plc_core.evaluation.benchmarks import Benchmark, Prompt
from plc_core.evaluation.policies import Answer, Decoding, Policy
from plc_core.progress import Progress
from plc_core.runs import Run
from plc_core.runs.status import now
from plc_core.storage.cache import ContentStore
from plc_core.storage.files import (
    RunError,
    is_there,
    make_folder,
    read_json,
    write_json,
    write_table,
)

GENERATIONS = pa.schema(
    {
        "prompt_id": pa.string(),
        "turn": pa.int64(),  # from 1
        "category": pa.string(),
        "policy": pa.string(),  # as "trained" or "reference"
        "decoding": pa.string(),  # "greedy", or "sampled …" with what it depends on
        "prompt": pa.string(),  # the user's text of this turn
        "conversation": pa.string(),  # all messages that were answered, as JSON
        "response": pa.string(),
        "finished": pa.bool_(),  # it came to its own end, and was not cut off
        "empty": pa.bool_(),  # nothing but white space
        "response_tokens": pa.int64(),  # with the terminator; null where a server does not say
    }
)
_KEPT = pa.schema(
    {
        "key": pa.string(),
        "response": pa.string(),
        "finished": pa.bool_(),
        "response_tokens": pa.int64(),
        "ids": pa.list_(pa.int32()),  # null where a server answered
    }
)


class GenerationWarning(UserWarning):
    """Answers that were cut off or are empty, in numbers."""


class GenerationResult(NamedTuple):
    """The answers to a benchmark and how many of them were asked for now, not found."""

    generations: pd.DataFrame  # in the schema GENERATIONS
    generated: int


def generate(
    run: Run,
    benchmark: Benchmark,
    policy: Policy,
    decoding: Decoding | None = None,
    name: str = "trained",
    progress: Progress | None = None,
) -> GenerationResult:
    """Answer a benchmark and write generations/<benchmark>.parquet in the run folder.

    Beside it a .json file says where prompts and answers are from.

    Answers are kept in the cache by what the policy is and sees and by the decoding, batch by
    batch: a run that was cut off goes on where it was, and no run asks for what another has. Rows
    of other policies and decodings stay in the file; those of this one are replaced whole, once
    all are there.

    Args:
        benchmark: of several turns, a turn sees the policy's own answers to those before.
        decoding: greedy unless told otherwise.
        name: of the policy, in the column `policy`.

    Raises:
        RunError: where prompts could not be answered, naming the first; the others are kept.
        DataError: where the chat template cannot write a conversation, naming the prompt.
    """
    decoding = decoding or Decoding()
    store = answer_store(policy, decoding)
    progress = progress or Progress(run)
    # One process at a time: the file's other rows are read and written again.
    with run.running("generating"):
        rows, generated = _rows(benchmark, policy, store, decoding, progress)
        table = pa.Table.from_pylist([row | {"policy": name} for row in rows], schema=GENERATIONS)
        write_generations(run, benchmark.name, table)
        frame = table.to_pandas()
        _record(run, benchmark, f"{name}, {decoding.label}", policy, decoding, frame)
    # Where the benchmark sets the limit, to be cut off at it is a property of the answer.
    if decoding.max_new_tokens != benchmark.max_new_tokens and (sentence := cut_off(frame)):
        warnings.warn(f"{benchmark.name}, {name}: {sentence}", GenerationWarning, stacklevel=2)
    return GenerationResult(frame, generated)


def answer_store(policy: Policy, decoding: Decoding) -> ContentStore:
    """What a policy answered under a decoding, by the key of the conversation."""
    settings = {"policy": policy.identity, "decoding": decoding.settings}
    return ContentStore("generations", settings, _KEPT)


def _rows(
    benchmark: Benchmark,
    policy: Policy,
    store: ContentStore,
    decoding: Decoding,
    progress: Progress,
) -> tuple[list[dict[str, Any]], int]:
    """The rows of all turns, and how many answers were made now."""
    rows: list[dict[str, Any]] = []
    generated = 0
    conversations = {p.prompt_id: list(p.history) for p in benchmark.prompts}
    for turn in range(max(len(p.turns) for p in benchmark.prompts)):
        prompts = [p for p in benchmark.prompts if len(p.turns) > turn]
        for prompt in prompts:
            user = {"role": "user", "content": prompt.turns[turn]}
            conversations[prompt.prompt_id].append(user)
        asked = [list(conversations[p.prompt_id]) for p in prompts]
        label = f"{benchmark.name}, turn {turn + 1}, {decoding.label}"
        keys, made = _answered(policy, store, prompts, asked, decoding, progress, label)
        generated += made
        for prompt, turns, key in zip(prompts, asked, keys, strict=True):
            found = store[key]
            rows.append(_row(prompt, turn, turns, found) | {"decoding": decoding.label})
            answer = {"role": "assistant", "content": found["response"]}
            conversations[prompt.prompt_id].append(answer)
    return rows, generated


def _record(
    run: Run,
    benchmark: Benchmark,
    label: str,
    policy: Policy,
    decoding: Decoding,
    generations: pd.DataFrame,
) -> None:
    """Say in generations/<benchmark>.json where prompts and answers are from."""
    path = run.path / "generations" / f"{benchmark.name}.json"
    record = read_json(path) if is_there(path) else {}
    record[label] = {
        "benchmark": {
            "origin": dict(benchmark.origin),
            "fingerprint": benchmark.fingerprint,
            "prompts": len(benchmark),
        },
        "policy": dict(policy.identity),
        "decoding": decoding.settings,
        "answers": len(generations),
        "cut_off": int((~generations["finished"]).sum()),
        "empty": int(generations["empty"].sum()),
        "written": now(),
    }
    write_json(path, record)


def cut_off(generations: pd.DataFrame) -> str:
    """How many answers were cut off or are empty, in a sentence; "" where none is."""
    cut, empty = int((~generations["finished"]).sum()), int(generations["empty"].sum())
    if not cut and not empty:
        return ""
    return (
        f"of {len(generations):,} answers {cut:,} were cut off before their end and {empty:,} are "
        "empty; they are marked and judged as they are."
    )


def write_generations(run: Run, benchmark: str, table: pa.Table) -> None:
    """Put rows into generations/<benchmark>.parquet; those of their policy and decoding go."""
    path = run.path / "generations" / f"{benchmark}.parquet"
    make_folder(path.parent)
    if is_there(path):
        old = run.read_table(path)
        if not set(GENERATIONS.names) <= set(old.column_names):
            raise RunError(f"{path} was written by another version; move it away to go on.")
        old = old.select(GENERATIONS.names).cast(GENERATIONS)
        new = {(row["policy"], row["decoding"]) for row in table.to_pylist()}
        stays = [
            pair not in new
            for pair in zip(old["policy"].to_pylist(), old["decoding"].to_pylist(), strict=True)
        ]
        table = pa.concat_tables([old.filter(pa.array(stays, pa.bool_())), table])
    write_table(path, table)


def _answered(
    policy: Policy,
    store: ContentStore,
    prompts: Sequence[Prompt],
    conversations: Sequence[list[Turn]],
    decoding: Decoding,
    progress: Progress,
    label: str,
) -> tuple[list[str], int]:
    """The keys of the conversations, all of which are in the store then, and how many were not."""
    keys = []
    for prompt, turns in zip(prompts, conversations, strict=True):
        try:
            keys.append(policy.key(turns))
        except DataError as error:
            raise DataError(f"Prompt {prompt.prompt_id!r} of {label}: {error}") from None
    # Equal prompts are asked once.
    missing = list({key: i for i, key in enumerate(keys) if key not in store}.values())
    with progress.phase(label, len(missing)) as advance, store.adding() as add:

        def keep(numbers: Sequence[int], answers: Sequence[Answer]) -> None:
            add(
                {
                    "key": keys[missing[number]],
                    "response": answer.text,
                    "finished": answer.finished,
                    "response_tokens": answer.tokens,
                    "ids": answer.ids,
                }
                for number, answer in zip(numbers, answers, strict=True)
            )
            advance(len(numbers))

        failed = policy.answer([conversations[i] for i in missing], decoding, keep)
    if failed:
        number, reason = next(iter(failed.items()))
        reason = reason.rstrip(".")
        raise RunError(
            f"{len(failed):,} of {len(missing):,} prompts could not be answered, as "
            f"{prompts[missing[number]].prompt_id!r}: {reason}. The other answers are kept; run "
            "again to go on."
        )
    return keys, len(missing)


def _row(
    prompt: Prompt, turn: int, conversation: list[Turn], found: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "prompt_id": prompt.prompt_id,
        "turn": turn + 1,
        "category": prompt.category,
        "prompt": prompt.turns[turn],
        "conversation": json.dumps(conversation, ensure_ascii=True),
        "response": found["response"],
        "finished": found["finished"],
        "empty": not found["response"].strip(),
        "response_tokens": found["response_tokens"],
    }

"""What an evaluation asks for, and whether a run folder has it already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from plc_core.engine.checkpoints import trained_checkpoint
from plc_core.engine.models.model_files import recorded_start
from plc_core.evaluation.benchmarks import Benchmark, open_benchmark
from plc_core.evaluation.judges.judgements import (
    Part,
    answer_checksums,
    beside,
    pair_checksum,
    score_generations,
)
from plc_core.evaluation.judges.named import Judge
from plc_core.evaluation.policies import Decoding
from plc_core.evaluation.win_rate import Incomplete
from plc_core.progress import Progress
from plc_core.runs import Run
from plc_core.storage.files import RunError, is_there, read_json


class EvaluationConfig(BaseModel):
    """What a notebook's parameters say of an evaluation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    benchmarks: list[str] = Field(["world"], min_length=1)  # names or files; a part as file#part
    judges: list[str] = Field(["gold"], min_length=1)  # of single answers, as `named_judge` has it
    pairwise_judges: list[str] = []  # of answers beside the baseline's, LLM judges alone
    decodings: list[Literal["greedy", "sampled"]] = Field(["greedy", "sampled"], min_length=1)
    eval_prompts: int = Field(600, ge=1)  # held-out prompts of the world
    prompt_limit: int | None = Field(None, ge=1)  # first prompts of other benchmarks; None: all
    max_new_tokens: int = Field(1024, ge=1)  # of an answer to another benchmark than the world
    incomplete: Incomplete = "error"  # where two sides answer different prompts; or common
    make: bool = True  # answer and judge what is missing; False says what is


class Bench(NamedTuple):
    """A benchmark, and the decodings that it is answered with, by kind: greedy, sampled."""

    prompts: Benchmark
    decodings: dict[str, Decoding]

    @property
    def labels(self) -> dict[str, str]:
        """The names of the decodings in files, by kind."""
        return {kind: decoding.label for kind, decoding in self.decodings.items()}


def open_bench(source: str, config: EvaluationConfig) -> Bench:
    """The benchmark of a parameter; DataError where there is none."""
    prompts = open_benchmark(source, config.eval_prompts, config.prompt_limit)
    most = prompts.max_new_tokens or config.max_new_tokens
    shared = prompts.fingerprint if prompts.one_stream else ""
    kinds = {
        "greedy": Decoding(most),
        "sampled": Decoding(most, temperature=1.0, shared=shared),
    }
    return Bench(prompts, {kind: kinds[kind] for kind in config.decodings})


def is_answered(run: Run, bench: Bench, policies: Sequence[str]) -> bool:
    """Whether the run's file has answers to just these prompts, made after its checkpoint and, of
    its start, by the model that it began from.
    """
    path = run.path / "generations" / f"{bench.prompts.name}.parquet"
    if not is_newer(path, trained_checkpoint(run) / "trainer_state.json"):
        return False
    try:
        table = run.read_table(path)
    except RunError:  # damaged
        return False
    if not {"prompt_id", "turn", "conversation"} <= set(table.column_names):
        return False
    if not _has_record(run, path, bench, policies):
        return False
    frame = table.select(["prompt_id", "turn", "policy", "decoding"]).to_pandas()
    return all(
        _covers(frame, bench, policy, label)
        for policy in policies
        for label in bench.labels.values()
    )


def has_log_ratios(run: Run, bench: Bench, policies: Sequence[str] = ("trained",)) -> bool:
    """Whether the log-probs of just the sampled answers are there, measured after these."""
    path = run.path / "generations" / f"{bench.prompts.name}-log-probs.parquet"
    if not is_newer(path, run.path / "generations" / f"{bench.prompts.name}.parquet"):
        return False
    try:
        frame = run.read_table(path, ["prompt_id", "turn", "policy", "decoding"]).to_pandas()
    except RunError:
        return False
    return all(_covers(frame, bench, policy, bench.labels["sampled"]) for policy in policies)


def _covers(frame: pd.DataFrame, bench: Bench, policy: str, label: str) -> bool:
    """Whether a policy has a row for every turn of every prompt, once."""
    own = frame[(frame["policy"] == policy) & (frame["decoding"] == label)]
    have = list(zip(own["prompt_id"], own["turn"], strict=True))
    wanted = [
        (prompt.prompt_id, turn)
        for prompt in bench.prompts.prompts
        for turn in range(1, len(prompt.turns) + 1)
    ]
    return sorted(have) == sorted(wanted)


def _has_record(run: Run, path: Path, bench: Bench, policies: Sequence[str]) -> bool:
    try:
        record = read_json(path.with_suffix(".json"))
    except RunError:
        return False
    start, dtype = recorded_start(run)
    for policy in policies:
        for decoding in bench.decodings.values():
            said = record.get(f"{policy}, {decoding.label}")
            if said is None or said["decoding"] != decoding.settings:
                return False
            if said["benchmark"]["fingerprint"] != bench.prompts.fingerprint:
                return False
            # Answers of a start that was damaged or replaced; in 16 bits it has another hash.
            known = start if policy == "reference" and dtype is None else None
            if known not in (None, said["policy"].get("model")):
                return False
    return True


def is_newer(path: Path, than: Path) -> bool:
    """Whether both files are there and `path` was written after `than`."""
    if not (is_there(path) and is_there(than)):
        return False
    return path.stat().st_mtime_ns >= than.stat().st_mtime_ns


def score_answers(run: Run, benchmark: str, judge: Judge) -> None:
    """Let a judge score a run's answers, unless its scores of just these are there."""
    if not is_judged(run, benchmark, judge):
        score_generations(run, benchmark, judge, Progress(run))


def is_judged(run: Run, benchmark: str, judge: Judge) -> bool:
    """Whether this judge's scores of just the run's answers are there."""
    path = run.path / "judgements" / f"{judge.name}-{benchmark}.parquet"
    answers = run.path / "generations" / f"{benchmark}.parquet"
    if not _is_of(path, [run], benchmark):
        return False
    keys = ["prompt_id", "turn", "policy", "decoding"]
    try:
        judged = run.read_table(path, keys) if _is_by(path, judge) else None
    except RunError:  # damaged
        return False
    if judged is None:
        return False
    # As values: text of one file may be typed as large text, and is the same text.
    return judged.to_pylist() == run.read_table(answers, keys).to_pylist()


def kept_verdicts(
    run: Run, benchmark: str, judge: Judge, baseline: Run, decoding: str
) -> pd.DataFrame | None:
    """A pairwise judge's verdicts on the run's answers beside the baseline's; None if not all are
    there.
    """
    path = run.path / "judgements" / f"{judge.name}-{benchmark}-against-{baseline.name}.parquet"
    part = Part("trained", decoding, "trained")
    try:
        if not _is_by(path, judge):
            return None
        verdicts = run.read_table(path).to_pandas()
    except RunError:  # damaged, or not there
        return None
    mine, theirs = beside(run, benchmark, baseline, part)
    said = read_json(path.with_suffix(".json")).get("answers")
    # An older version said which file they were from, or nothing.
    of_these = (
        said.get(str(part)) == pair_checksum(mine, theirs)
        if isinstance(said, dict)
        else _is_of(path, [run, baseline], benchmark)
    )
    own = verdicts[verdicts[list(Part._fields)].eq(list(part)).all(axis=1)]
    met = [sorted(zip(side["prompt_id"], side["turn"], strict=True)) for side in (own, mine)]
    return own.reset_index(drop=True) if of_these and met[0] == met[1] else None


def refuse_missing(what: str, runs: Sequence[str]) -> None:
    """RunError that names runs which lack something, where nothing is to be made."""
    if names := list(dict.fromkeys(runs)):
        count = "1 run lacks" if len(names) == 1 else f"{len(names)} runs lack"
        raise RunError(f"{count} {what}: {', '.join(names)}. Set make to true to have that made.")


def _is_of(path: Path, runs: Sequence[Run], benchmark: str) -> bool:
    """Whether a file of judgements is of the answers that these runs have now."""
    try:
        said = read_json(path.with_suffix(".json")).get("answers")
        if said is not None:
            return bool(path.is_file() and said == answer_checksums(runs, benchmark))
    except (RunError, OSError):
        return False
    # An older version did not say which.
    return all(is_newer(path, run.path / "generations" / f"{benchmark}.parquet") for run in runs)


def _is_by(path: Path, judge: Judge) -> bool:
    """Whether a file of judgements was made by this judge with its settings."""
    said = read_json(path.with_suffix(".json"))
    return all(said.get(k) == v for k, v in judge.record.items() if k != "usage")

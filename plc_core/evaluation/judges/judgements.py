"""Judgements in the run folder: a score for every answer, a verdict for every pair of answers."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pandas as pd
import pyarrow as pa

from plc_core.progress import Progress
from plc_core.runs import Run
from plc_core.runs.status import now
from plc_core.storage.cache import content_hash
from plc_core.storage.checksums import checksum
from plc_core.storage.files import RunError, make_folder, read_json, write_json, write_table

SCORES = pa.schema(
    {
        "prompt_id": pa.string(),
        "turn": pa.int64(),
        "policy": pa.string(),
        "decoding": pa.string(),
        "reward": pa.float64(),  # null where the judge gave none
        "problem": pa.string(),  # why; null otherwise
        "neutralised": pa.string(),  # of the judge's own marks what the texts spelled, a line each
    }
)
VERDICTS = pa.schema(
    {
        "prompt_id": pa.string(),
        "turn": pa.int64(),
        "policy": pa.string(),
        "decoding": pa.string(),
        "baseline": pa.string(),  # the run of the other answer
        "baseline_policy": pa.string(),
        "swapped": pa.bool_(),  # the baseline's answer was shown first, as A
        "verdict": pa.string(),  # A, B or tie, by place; null where the judge gave none
        "win": pa.float64(),  # 1, 0, or 0.5 for a tie, of the policy; null with the verdict
        "problem": pa.string(),
        "neutralised": pa.string(),
    }
)
_KEYS = ["prompt_id", "turn"]


class JudgeWarning(UserWarning):
    """A judge whose verdicts say little: the same for everything, or some that are missing."""


class Score(NamedTuple):
    """A score of an answer, or why there is none."""

    value: float | None
    problem: str | None = None
    neutralised: str | None = None


class Verdict(NamedTuple):
    """Which of two answers is better, by place, and which order they were shown in."""

    place: str | None  # "A", "B", "tie", or None with a problem
    swapped: bool
    problem: str | None = None
    neutralised: str | None = None

    @property
    def win(self) -> float | None:
        """Of the first answer: 1, 0, or 0.5 for a tie."""
        if self.place is None:
            return None
        return 0.5 if self.place == "tie" else float((self.place == "A") != self.swapped)


class ScoringJudge(Protocol):
    name: str

    @property
    def record(self) -> dict[str, Any]:
        """What decides its judgements, and what they took, for the run's record."""

    def score(self, answers: pd.DataFrame, progress: Progress | None = None) -> list[Score]:
        """A score for each row of generations."""


class PairwiseJudge(Protocol):
    name: str

    @property
    def record(self) -> dict[str, Any]:
        """What decides its judgements, and what they took, for the run's record."""

    def compare(
        self, answers: pd.DataFrame, others: pd.DataFrame, progress: Progress | None = None
    ) -> list[Verdict]:
        """A verdict for each row of generations and the row of others beside it."""


def score_generations(
    run: Run, benchmark: str, judge: ScoringJudge, progress: Progress | None = None
) -> pd.DataFrame:
    """Score every answer in generations/<benchmark>.parquet of the run.

    Writes judgements/<judge>-<benchmark>.parquet in the schema `SCORES`; a score that the judge
    did not give stays in the table as null, with the problem. Beside it a .json file says what the
    judge was, with which seed, and what it cost.

    Raises:
        RunError: where there are no answers.
    """
    answers = _answers(run, benchmark)
    with run.running("judging"):
        scores = judge.score(answers, progress or Progress(run))
    _warn_of_missing(judge.name, [score.problem for score in scores])
    values = [score.value for score in scores if score.value is not None]
    different = len(set(answers["response"]))
    if len(values) > 1 and len(set(values)) == 1 and different > 1:
        _warn(
            f"The judge {judge.name!r} gave all {len(values):,} answers, "
            f"{different:,} of them different, the same score {values[0]:g}: "
            "it does not tell them apart."
        )
    columns = _named(answers) | {
        "reward": [score.value for score in scores],
        "problem": [score.problem for score in scores],
        "neutralised": [score.neutralised for score in scores],
    }
    judged = answer_checksums([run], benchmark)
    return _written(run, judge, f"{judge.name}-{benchmark}", columns, SCORES, judged)


def compare_generations(
    run: Run,
    benchmark: str,
    judge: PairwiseJudge,
    baseline: Run,
    *,
    policy: str = "trained",
    baseline_policy: str = "trained",
    decoding: str = "greedy",
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Let a judge compare a run's answers with those of a baseline to the same prompts.

    Writes judgements/<judge>-<benchmark>-against-<baseline>.parquet in the schema `VERDICTS`. Rows
    of other policies and decodings stay there, if the judge and its seed are still the same; the
    .json file says of each which answers its verdicts are of.

    Raises:
        RunError: where one of the two has no answers, or they do not answer the same prompts, with
            the counts.
    """
    part = Part(policy, decoding, baseline_policy)
    mine, theirs = beside(run, benchmark, baseline, part)
    with run.running("judging"):
        verdicts = judge.compare(mine, theirs, progress or Progress(run))
    _warn_of_missing(judge.name, [verdict.problem for verdict in verdicts])
    differ = (mine["conversation"] != theirs["conversation"]) | (
        mine["response"] != theirs["response"]
    )
    asked = [v.place for v, other in zip(verdicts, differ, strict=True) if other and v.place]
    if len(asked) > 1 and len(set(asked)) == 1:
        firsts = Counter(v.swapped for v, other in zip(verdicts, differ, strict=True) if other)
        _warn(
            f"The judge {judge.name!r} gave all {len(asked):,} pairs of different answers the same "
            f"verdict {asked[0]!r}, with the baseline first in {firsts[True]:,} and second in "
            f"{firsts[False]:,}: it does not tell them apart."
        )
    columns = _named(mine) | {
        "baseline": [baseline.name] * len(mine),
        "baseline_policy": [baseline_policy] * len(mine),
        "swapped": [verdict.swapped for verdict in verdicts],
        "verdict": [verdict.place for verdict in verdicts],
        "win": [verdict.win for verdict in verdicts],
        "problem": [verdict.problem for verdict in verdicts],
        "neutralised": [verdict.neutralised for verdict in verdicts],
    }
    name = f"{judge.name}-{benchmark}-against-{baseline.name}"
    judged = {str(part): pair_checksum(mine, theirs)}
    return _written(run, judge, name, columns, VERDICTS, judged)


class Part(NamedTuple):
    """What verdicts of one call are of: the rows of one policy, decoding and policy beside it."""

    policy: str
    decoding: str
    baseline_policy: str

    def __str__(self) -> str:
        return ", ".join(self)


def beside(
    run: Run, benchmark: str, baseline: Run, part: Part
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The answers of a run and those of a baseline to the same prompts, row by row.

    Raises:
        RunError: as `compare_generations`.
    """
    mine = _side(run, benchmark, part.policy, part.decoding)
    theirs = _side(baseline, benchmark, part.baseline_policy, part.decoding)
    missing, extra = theirs.index.difference(mine.index), mine.index.difference(theirs.index)
    if len(missing) or len(extra):
        raise RunError(
            f"{run.name!r} and {baseline.name!r} answer different prompts of {benchmark!r}: of "
            f"the baseline's {len(theirs):,} answers {len(missing):,} have none beside them, and "
            f"{len(extra):,} of the run's {len(mine):,} are to others."
        )
    theirs = theirs.loc[mine.index]
    if list(mine["prompt"]) != list(theirs["prompt"]):
        raise RunError(f"Some ids of {benchmark!r} are other prompts in {baseline.name!r}.")
    return mine.reset_index(), theirs.reset_index()


def pair_checksum(mine: pd.DataFrame, theirs: pd.DataFrame) -> str:
    """What names the answers that verdicts are of, whatever else lies in their files."""
    shown = [*_KEYS, "conversation", "response"]
    return content_hash([side[shown].to_dict("list") for side in (mine, theirs)])


def answer_checksums(runs: Sequence[Run], benchmark: str) -> list[int]:
    """What names the answers that judgements are of; a clock that went back does not."""
    return [checksum(run.path / "generations" / f"{benchmark}.parquet") for run in runs]


def file_name(text: str) -> str:
    """A text as a part of a file's name."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "judge"


def _answers(run: Run, benchmark: str) -> pd.DataFrame:
    answers = run.table(f"generations/{benchmark}.parquet")
    if not len(answers):
        raise RunError(f"The run {run.name!r} has no answers to {benchmark!r}.")
    twice = int(answers.duplicated([*_KEYS, "policy", "decoding"]).sum())
    if twice:
        raise RunError(f"The answers of {run.name!r} to {benchmark!r} hold {twice:,} rows twice.")
    return answers


def _side(run: Run, benchmark: str, policy: str, decoding: str) -> pd.DataFrame:
    answers = _answers(run, benchmark)
    rows = answers[(answers["policy"] == policy) & (answers["decoding"] == decoding)]
    if not len(rows):
        there = sorted(set(zip(answers["policy"], answers["decoding"], strict=True)))
        raise RunError(
            f"The run {run.name!r} has no {decoding} answers of {policy!r} to {benchmark!r}; "
            f"there are {', '.join(' '.join(pair) for pair in there)}."
        )
    return rows.set_index(_KEYS)


def _warn_of_missing(judge: str, problems: Sequence[str | None]) -> None:
    found = [problem for problem in problems if problem is not None]
    if found:
        _warn(
            f"The judge {judge!r} gave no verdict on {len(found):,} of {len(problems):,}; they are "
            f"listed with their problem, the first being: {found[0]}"
        )


def _warn(sentence: str) -> None:
    warnings.warn(sentence, JudgeWarning, stacklevel=3)


def _named(answers: pd.DataFrame) -> dict[str, list[Any]]:
    return {name: answers[name].tolist() for name in (*_KEYS, "policy", "decoding")}


def _written(
    run: Run,
    judge: ScoringJudge | PairwiseJudge,
    name: str,
    columns: dict[str, list[Any]],
    schema: pa.Schema,
    judged: list[int] | dict[str, str],
) -> pd.DataFrame:
    path = run.path / "judgements" / f"{name}.parquet"
    make_folder(path.parent)
    table = whole = pa.table(columns, schema=schema)
    record = judge.record
    earlier = _earlier(path, record)
    if earlier is not None:
        if isinstance(judged, dict):
            others, known = _others(run, path, judged, earlier.get("answers"))
            whole, judged = pa.concat_tables([others, table]), known | judged
        record = record | {"usage": _together(earlier.get("usage"), record.get("usage"))}
    write_table(path, whole)
    found = {
        name: len(whole) - whole[column].null_count
        for name, column in (("without_verdict", "problem"), ("neutralised", "neutralised"))
    }
    counts = {"rows": len(whole), **found, "answers": judged, "written": now()}
    write_json(path.with_suffix(".json"), record | counts)
    return table.to_pandas()


def _earlier(path: Path, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was recorded of the file, if this judge made it with these settings."""
    try:
        said = read_json(path.with_suffix(".json"))
    except RunError:  # there is none
        return None
    same = all(said.get(name) == value for name, value in record.items() if name != "usage")
    return said if same else None


def _others(
    run: Run, path: Path, new: Collection[str], said: Any
) -> tuple[pa.Table, dict[str, str]]:
    """The rows of the file that are of other parts than the `new`, and of which answers they are.

    None where an older version did not say that: what they held is in the cache.
    """
    said = said if isinstance(said, dict) else {}
    known = {part: name for part, name in said.items() if part not in new}
    try:
        old = run.read_table(path)
    except RunError:  # damaged: what it held is in the cache
        return VERDICTS.empty_table(), {}
    parts = [str(Part(**row)) for row in old.select(list(Part._fields)).to_pylist()]
    return old.filter(pa.array([p in known for p in parts], pa.bool_())).cast(VERDICTS), known


def _together(before: Any, now: Any) -> Any:
    """What a file's verdicts took over all calls that wrote it."""
    if not before or not now:
        return now
    added = ("requests", "input_tokens", "output_tokens", "cost")
    both = {name: (before[name], now[name]) for name in added}
    return now | {n: None if None in pair else sum(pair) for n, pair in both.items()}

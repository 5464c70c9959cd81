"""Judged answers of runs: which files there are, and the one answer on the screen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from inspection.pair import last_turn
from plc_core.analysis.statistics import MeanInterval, bootstrap_mean
from plc_core.evaluation.results import is_matched
from plc_core.runs import Run
from plc_core.runs.records import ANSWER, refuse_lost, refuse_other_answers
from plc_core.storage.files import RunError, is_sealed, table_names

TRAINED = "trained"


def judgement_files(run: Run) -> dict[str, str]:
    """The run's files of judgements by name, each "scores" or "verdicts"; others are left out.

    Raises RunError where one of them is damaged or gone.
    """
    refuse_lost(run.path / "judgements")
    found = {}
    for path in sorted((run.path / "judgements").glob("[!.]*.parquet")):
        names = _columns(run, path)
        if {"prompt_id", "policy", "decoding"} <= names:
            if "reward" in names:
                found[path.stem] = "scores"
            elif "win" in names:
                found[path.stem] = "verdicts"
    return found


def _columns(run: Run, path: Path) -> set[str]:
    """The columns of a table of the run; none where there is none, or a link, or another's."""
    if path.is_symlink() or not path.exists():
        return set()
    # Beside the run's own lies a record: of these one without a checksum is damaged.
    record = path.with_name(path.stem.removesuffix("-log-probs") + ".json")
    is_own = not run.has_checksums or record.exists() or is_sealed(path)
    return set(table_names(path)) if is_own else set()


def read_judgements(run: Run, name: str, policy: str = TRAINED) -> pd.DataFrame:
    """The judged answers of one policy of a run: prompt_id, decoding, and reward or win.

    Of several turns each is a prompt of its own, named prompt_id/turn.

    Raises:
        RunError: where the file is missing, or a link.
    """
    path = run.path / "judgements" / f"{name}.parquet"
    if path.is_symlink():
        raise RunError(f"{path} is a link and may lead outside its run; it was not opened.")
    if not path.exists():
        raise RunError(
            f"{path} is missing: the run has no judgements of this name. Put a copy of it back; "
            "without one, evaluate the run."
        )
    table = run.read_table(path).to_pandas()
    table = table[table["policy"] == policy].reset_index(drop=True)
    if "turn" in table and len(set(table["turn"])) > 1:
        table["prompt_id"] = table["prompt_id"] + "/" + table["turn"].astype(str)
    return table


@dataclass(frozen=True)
class PromptSet:
    """The prompts, in their decodings, on which a run was judged: equal sets, equal `key`."""

    key: str
    prompts: int


def prompt_set(run: Run, name: str) -> PromptSet:
    """Which prompts the trained policy of `run` was judged on; RunError as `read_judgements`."""
    table = read_judgements(run, name)[["decoding", "prompt_id"]].drop_duplicates()
    lines = sorted(table["decoding"].astype(str) + " " + table["prompt_id"].astype(str))
    key = hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()[:8]
    return PromptSet(key, int(table["prompt_id"].nunique()))


def judged(runs: Mapping[str, Run], name: str) -> pd.DataFrame:
    """The scored answers of several runs as `win_rate_cells` takes them.

    Columns: method (the key of the run), benchmark, decoding, prompt_id, reward. With the starting
    model's own answers, where a file has them, as the method "reference": those of the first run
    that has them. Compare runs of one `prompt_set` only.
    """
    frames = []
    for method, run in runs.items():
        table = read_judgements(run, name)
        frames.append(table.assign(method=method))
    for run in runs.values():
        reference = read_judgements(run, name, "reference")
        if len(reference):
            frames.append(reference.assign(method="reference"))
            break
    if not frames:
        return pd.DataFrame(columns=["method", "benchmark", "decoding", "prompt_id", "reward"])
    together = pd.concat(frames, ignore_index=True).assign(benchmark=name)
    return together[["method", "benchmark", "decoding", "prompt_id", "reward"]]


def outcomes(table: pd.DataFrame, method: str, baseline: str, decoding: str) -> pd.DataFrame:
    """Each prompt that both answered: prompt_id, reward, baseline, difference, outcome.

    `table` is that of `judged`. Sorted from the clearest loss to the clearest win.
    """
    of = table[table["decoding"] == decoding]
    own, other = (
        of[of["method"] == who].set_index("prompt_id")["reward"] for who in (method, baseline)
    )
    both = pd.DataFrame({"reward": own, "baseline": other}).dropna()
    both["difference"] = both["reward"] - both["baseline"]
    both["outcome"] = "tie"
    both.loc[both["difference"] > 0, "outcome"] = "win"
    both.loc[both["difference"] < 0, "outcome"] = "loss"
    return both.sort_values("difference", kind="stable").reset_index()


def benchmark_of(run: Run, judgements: str) -> str | None:
    """The benchmark whose answers a file of judgements is about; None where they are not kept.

    Raises RunError where a table of answers is gone.
    """
    refuse_lost(run.path / "generations")
    stems = [path.stem for path in (run.path / "generations").glob("[!.]*.parquet")]
    named = judgements.partition("-against-")[0]
    fitting = [stem for stem in stems if named == stem or named.endswith(f"-{stem}")]
    return max(fitting, key=len, default=None)


def refuse_earlier(run: Run, name: str) -> None:
    """RunError where scores are not of the answers that the run has: an earlier copy of either.

    Of the trained policy: other policies may since have answered, and not for every judge.
    """
    benchmark = benchmark_of(run, name)
    if benchmark is None:
        return
    scores = run.path / "judgements" / f"{name}.parquet"
    answers = run.path / "generations" / f"{benchmark}.parquet"
    own, others = (_answers_in(run, path) for path in (scores, answers))
    refuse_other_answers(scores, own, answers, others)


def _answers_in(run: Run, path: Path, decoding: str | None = None) -> pd.DataFrame:
    """The rows of the trained policy in a table, by the columns that name an answer."""
    known = [column for column in ANSWER if column in _columns(run, path)]
    if not {"policy", "decoding"} <= set(known):
        return pd.DataFrame(columns=known)
    table = run.read_table(path, known).to_pandas()
    own = table[table["policy"] == TRAINED]
    return own if decoding is None else own[own["decoding"] == decoding]


def log_ratios(run: Run, judgements: str) -> pd.Series:
    """log(pi/pi_ref) of the trained policy's sampled answers by prompt, in nats per response.

    Its mean estimates the KL to the reference. Of the benchmark that a file of judgements is about;
    empty where the run does not keep them.

    Raises:
        RunError: where they are damaged, or of other answers than were judged.
    """
    benchmark = benchmark_of(run, judgements)
    for name in (f"{benchmark}-log-probs", benchmark) if benchmark else ():
        path = run.path / "generations" / f"{name}.parquet"
        needed = {"prompt_id", "policy", "decoding", "policy_logp", "reference_logp"}
        if not needed <= _columns(run, path):
            continue
        table = run.read_table(path, sorted(needed)).to_pandas()
        own = table[(table["policy"] == TRAINED) & (table["decoding"] == "sampled")]
        scores = run.path / "judgements" / f"{judgements}.parquet"
        judged = _answers_in(run, scores, "sampled")
        if len(judged) and len(own):
            refuse_other_answers(path, _answers_in(run, path, "sampled"), scores, judged)
        ratios = (own["policy_logp"] - own["reference_logp"]).set_axis(own["prompt_id"]).dropna()
        if len(ratios):
            return ratios
    return pd.Series(dtype="float64")


def kl_by_run(runs: Mapping[str, Run], judgements: str) -> dict[str, MeanInterval]:
    """The KL of each run to its reference, in nats per response; n = 0 where it is not kept."""
    return {name: bootstrap_mean(log_ratios(run, judgements), seed=0) for name, run in runs.items()}


def nearest_dpo(
    kls: Mapping[str, MeanInterval], objectives: Mapping[str, str], run: str
) -> str | None:
    """The plain DPO run whose KL is nearest to that of `run`; None where a KL is missing."""
    plain_dpo = [one for one in kls if kls[one].n and objectives[one] == "dpo" and one != run]
    if not kls[run].n or not plain_dpo:
        return None
    return min(plain_dpo, key=lambda one: abs(kls[one].mean - kls[run].mean))


def kl_control(
    kls: Mapping[str, MeanInterval], objectives: Mapping[str, str], run: str
) -> str | None:
    """The plain DPO run that moved as far as `run`; None where none did."""
    near = nearest_dpo(kls, objectives, run)
    return near if near is not None and is_matched(kls[near].mean, kls[run].mean) else None


def prompt_of(answer: Mapping[str, Any]) -> Any:
    """What was answered: the messages before the answer where a row has them, else its prompt.

    Messages lie in a row as JSON; a text that holds no list of them is given as it is.
    """
    conversation = answer.get("conversation")
    if isinstance(conversation, str):
        try:
            messages = json.loads(conversation)
        except (ValueError, RecursionError):
            return conversation
        return messages if isinstance(messages, list) else conversation
    return conversation or answer.get("prompt")


def prompts_of(run: Run, benchmark: str, decoding: str) -> dict[str, str]:
    """What the trained policy was asked last, by prompt_id as `read_judgements` names prompts.

    Empty where it is not kept.
    """
    path = run.path / "generations" / f"{benchmark}.parquet"
    names = [n for n in ("prompt_id", "turn", "conversation", "prompt") if n in _columns(run, path)]
    if "prompt_id" not in names:
        return {}
    wanted = [("policy", "=", TRAINED), ("decoding", "=", decoding)]
    found: dict[str, str] = {}
    for row in run.read_table(path, names, filters=wanted).to_pylist():
        asked = last_turn(prompt_of(row))
        found.setdefault(row["prompt_id"], asked)  # the first turn, where there are several
        found[f"{row['prompt_id']}/{row.get('turn')}"] = asked
    return found


def read_answer(
    run: Run, benchmark: str, prompt_id: str, decoding: str, policies: Sequence[str] = (TRAINED,)
) -> dict[str, Any] | None:
    """The row of one answer in generations/<benchmark>.parquet; None where there is none."""
    path: Path = run.path / "generations" / f"{benchmark}.parquet"
    if path.is_symlink() or not path.exists():
        return None
    prompt, _, turn = prompt_id.partition("/")
    wanted: list[tuple[str, str, Any]] = [
        ("prompt_id", "=", prompt),
        ("decoding", "=", decoding),
        ("policy", "in", list(policies)),
    ]
    if turn:
        wanted.append(("turn", "=", int(turn)))
    rows = run.read_table(path, filters=wanted).to_pylist()
    return rows[0] if rows else None

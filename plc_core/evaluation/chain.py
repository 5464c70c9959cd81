"""From runs to judged answers: generate, judge and read back, going on where it was cut off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict, Field

from plc_core.engine.checkpoints import load_trained, trained_checkpoint
from plc_core.engine.models import load_policy, load_tokenizer
from plc_core.evaluation.benchmarks import Benchmark, load_benchmark
from plc_core.evaluation.contestants import GROUP, Contestant, check_contestants
from plc_core.evaluation.divergence import measure_log_ratios
from plc_core.evaluation.generate import generate
from plc_core.evaluation.judged import Evaluation, read_evaluation
from plc_core.evaluation.judges.judgements import compare_generations, score_generations
from plc_core.evaluation.judges.language_model import LLMJudge
from plc_core.evaluation.judges.named import Judge, named_judge
from plc_core.evaluation.policies import Decoding, LocalPolicy, Policy
from plc_core.evaluation.win_rate import Incomplete
from plc_core.evaluation.world_generations import generate_world
from plc_core.files import RunError, read_json, read_table
from plc_core.progress import Progress
from plc_core.runs import Run

WORLD = "world"
"""The benchmark that a training run of the world answers itself, with the log-probs of its KL."""


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


class _Bench(NamedTuple):
    """A benchmark, the names of its decodings in files, and its decodings (None: the world's)."""

    prompts: Benchmark
    labels: dict[str, str]
    decodings: dict[str, Decoding] | None


def evaluate_runs(
    entries: Sequence[Contestant], config: EvaluationConfig, baseline: str = "DPO"
) -> Evaluation:
    """Answer every benchmark with every policy, judge the answers, and read the judgements.

    All of it is kept in the run folders and, by content, in the cache: what is there and fits is
    not made again, and after a kill a second call goes on with the batch that was under way.

    Args:
        entries: who is compared; `contestants` makes them of runs by method.
        config: benchmarks, judges and decodings.
        baseline: the method that win rates are against; one in every group of pairs, model, seed.

    Raises:
        RunError, DataError, ModelError: a sentence, where something cannot be compared, answered or
            judged.
    """
    check_contestants(entries, baseline)
    opened = [_bench_of(source, config) for source in config.benchmarks]
    benches = {bench.prompts.name: bench for bench in opened}
    if len(benches) < len(opened):
        raise RunError(f"Two of the benchmarks {', '.join(config.benchmarks)} have one name.")
    references: dict[str, LocalPolicy] = {}
    for entry in entries:
        for bench in benches.values():
            _answer(entry, bench, references)
    references.clear()  # a judge may need the memory
    names = []
    for name in config.judges:
        judge = named_judge(name)
        names.append(judge.name)
        for entry in entries:
            for bench in benches.values():
                _score(entry.run, bench.prompts.name, judge)
    versus = [
        _compare_all(entries, benches, named_judge(name), baseline)
        for name in config.pairwise_judges
    ]
    labels = {name: bench.labels for name, bench in benches.items()}
    sizes = {name: len(bench.prompts) for name, bench in benches.items()}
    return read_evaluation(entries, labels, names, baseline, sizes, versus, config.incomplete)


def _bench_of(source: str, config: EvaluationConfig) -> _Bench:
    if source == WORLD:
        prompts = load_benchmark(WORLD, limit=config.eval_prompts)
        world = Benchmark(WORLD, prompts.prompts, prompts.origin)
        return _Bench(world, {kind: kind for kind in config.decodings}, None)
    path, _, part = source.partition("#")
    prompts = load_benchmark(path, part=part or None, limit=config.prompt_limit)
    kinds: dict[str, Decoding] = {
        "greedy": Decoding(config.max_new_tokens),
        "sampled": Decoding(config.max_new_tokens, temperature=1.0),
    }
    decodings: dict[str, Decoding] = {kind: kinds[kind] for kind in config.decodings}
    return _Bench(prompts, {kind: d.label for kind, d in decodings.items()}, decodings)


# ---- answers -------------------------------------------------------------------------------------


def _answer(entry: Contestant, bench: _Bench, references: dict[str, LocalPolicy]) -> None:
    run, name = entry.run, bench.prompts.name
    if bench.decodings is None:
        if not _is_answered(run, bench, ("trained", "reference")):
            generate_world(run, len(bench.prompts))
        return
    policies = ("trained",) if entry.policy is not None else ("trained", "reference")
    ratios = run.path / "generations" / f"{name}-log-probs.parquet"
    wants_ratios = entry.policy is None and "sampled" in bench.decodings
    fresh = not wants_ratios or _is_newer(ratios, run.path / "generations" / f"{name}.parquet")
    if entry.policy is None and fresh and _is_answered(run, bench, policies):
        return
    model = str(run.info.get("config", {}).get("model"))
    own: Policy = entry.policy or _on_device(load_trained(run), load_tokenizer(model))
    for decoding in bench.decodings.values():
        generate(run, bench.prompts, own, decoding)
    if entry.policy is not None:
        return
    if model not in references:
        references[model] = _on_device(*load_policy(model))
    for decoding in bench.decodings.values():
        generate(run, bench.prompts, references[model], decoding, name="reference")
    if wants_ratios and isinstance(own, LocalPolicy):
        rows = int(run.info["config"].get("row_tokens", 1024))
        measure_log_ratios(run, name, own, references[model], bench.decodings["sampled"], rows)


def _on_device(model: Any, tokenizer: Any) -> LocalPolicy:
    return LocalPolicy(model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer)


def _is_answered(run: Run, bench: _Bench, policies: Sequence[str]) -> bool:
    """Whether the run's file has answers to just these prompts, made after its checkpoint."""
    path = run.path / "generations" / f"{bench.prompts.name}.parquet"
    if not _is_newer(path, trained_checkpoint(run) / "trainer_state.json"):
        return False
    table = read_table(path)
    if not {"prompt_id", "turn", "conversation"} <= set(table.column_names):
        return False
    if bench.decodings is not None and not _has_record(path, bench, policies):
        return False
    frame = table.select(["prompt_id", "turn", "policy", "decoding"]).to_pandas()
    wanted = {
        (prompt.prompt_id, turn)
        for prompt in bench.prompts.prompts
        for turn in range(1, len(prompt.turns) + 1)
    }
    for policy in policies:
        for label in bench.labels.values():
            own = frame[(frame["policy"] == policy) & (frame["decoding"] == label)]
            have = set(zip(own["prompt_id"], own["turn"], strict=True))
            if have != wanted or len(own) != len(wanted):
                return False
    return True


def _has_record(path: Path, bench: _Bench, policies: Sequence[str]) -> bool:
    try:
        record = read_json(path.with_suffix(".json"))
    except RunError:
        return False
    for policy in policies:
        for decoding in (bench.decodings or {}).values():
            said = record.get(f"{policy}, {decoding.label}")
            if said is None or said["decoding"] != decoding.settings:
                return False
            if said["benchmark"]["fingerprint"] != bench.prompts.fingerprint:
                return False
    return True


def _is_newer(path: Path, than: Path) -> bool:
    return path.exists() and path.stat().st_mtime_ns >= than.stat().st_mtime_ns


# ---- judgements ----------------------------------------------------------------------------------


def _score(run: Run, benchmark: str, judge: Judge) -> None:
    path = run.path / "judgements" / f"{judge.name}-{benchmark}.parquet"
    if not _is_judged(path, run.path / "generations" / f"{benchmark}.parquet", judge):
        score_generations(run, benchmark, judge, Progress(run))


def _is_judged(path: Path, answers: Path, judge: Judge) -> bool:
    """Whether this judge's scores of just these answers are there."""
    if not _is_newer(path, answers):
        return False
    try:
        said = read_json(path.with_suffix(".json"))
    except RunError:
        return False
    if any(said.get(k) != v for k, v in judge.record.items() if k != "usage"):
        return False
    keys = ["prompt_id", "policy", "decoding"]
    return read_table(path, keys).equals(read_table(answers, keys))


def _compare_all(
    entries: Sequence[Contestant], benches: dict[str, _Bench], judge: Judge, baseline: str
) -> pd.DataFrame:
    """Verdicts of a pairwise judge on every contestant's answers beside the baseline's."""
    if not isinstance(judge, LLMJudge):
        raise RunError(f"{judge.name!r} scores single answers; two side by side need an LLM judge.")
    sides = {entry.group: entry for entry in entries if entry.method == baseline}
    frames = []
    for entry in entries:
        if entry.method == baseline:
            continue
        for name, bench in benches.items():
            for kind, label in bench.labels.items():
                verdicts = compare_generations(
                    entry.run, name, judge, sides[entry.group].run, decoding=label
                )
                where: dict[str, Any] = dict(zip(GROUP, entry.group, strict=True))
                where |= {"judge": judge.name, "benchmark": name, "method": entry.method}
                frames.append(verdicts.assign(**where, decoding=kind))
    return pd.concat(frames, ignore_index=True)

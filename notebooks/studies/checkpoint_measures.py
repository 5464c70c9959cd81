"""A run's checkpoints evaluated one by one: what a policy earns while it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from plc_core.engine.checkpoints import load_trained, whole_checkpoints
from plc_core.engine.models import load_policy, load_tokenizer
from plc_core.evaluation.chain import on_device
from plc_core.evaluation.completeness import (
    Bench,
    EvaluationConfig,
    has_log_ratios,
    is_answered,
    is_judged,
    open_bench,
    refuse_missing,
    score_answers,
)
from plc_core.evaluation.divergence import measure_log_ratios
from plc_core.evaluation.generate import generate
from plc_core.evaluation.judges.named import named_judge
from plc_core.evaluation.sides import mean_over_benchmarks
from plc_core.evaluation.win_rate import verdicts
from plc_core.files import RunError
from plc_core.runs import Run

MEAN_NAME = "mean of benchmarks"
"""The rows of several benchmarks together, under `benchmark`."""


def evaluate_checkpoints(runs: Mapping[str, Run], config: EvaluationConfig) -> pd.DataFrame:
    """Judge the answers of every checkpoint.

    Args:
        runs: by method; trained with `save_steps`, so that there is more than one checkpoint.
        config: benchmarks, one judge, and decodings.

    Returns:
        One row a benchmark, method, checkpoint and decoding, step 0 being SFT: benchmark, method,
        step, share (of training), decoding, n, reward, reward_low, reward_high; win_rate, low, high
        against SFT (percent; 50 at step 0); kl, kl_low, kl_high (nats a response; NaN without
        sampling). Of several benchmarks first come rows of `MEAN_NAME`, the mean over them, each
        weighing alike.

    Raises:
        RunError: where a run has one checkpoint only, or is not trained to its end; where
            `config.make` is False, for what would have to be answered or judged.
    """
    opened = [open_bench(source, config) for source in config.benchmarks]
    benches = {bench.prompts.name: bench for bench in opened}
    if len(benches) < len(opened):
        raise RunError(f"Two of the benchmarks {', '.join(config.benchmarks)} have one name.")
    judge = named_judge(config.judges[0])
    rows = []
    for method, run in runs.items():
        steps = list(whole_checkpoints(run))
        if not run.is_trained or len(steps) < 2:
            raise RunError(
                f"The run {run.name!r} ({method}) has {len(steps)} checkpoints; train it to its "
                "end with save_steps, as 12, to see how it came there."
            )
        for name, bench in benches.items():
            if not config.make:
                lacking = [] if _is_answered(run, bench) else [run.name]
                refuse_missing(f"answers of its checkpoints to {name!r}", lacking)
                lacking = [] if is_judged(run, name, judge) else [run.name]
                refuse_missing(f"scores of {judge.name!r} for them", lacking)
            _answer(run, bench)
            score_answers(run, name, judge)
        rows += _rows(method, run, benches, judge.name)
    return pd.DataFrame(rows)


def _is_answered(run: Run, bench: Bench) -> bool:
    names = [_name(step) for step in whole_checkpoints(run)]
    known = "sampled" not in bench.labels or has_log_ratios(run, bench, names)
    return known and is_answered(run, bench, [_name(0), *names])


def _answer(run: Run, bench: Bench) -> None:
    if _is_answered(run, bench):
        return
    names = {_name(step): path for step, path in whole_checkpoints(run).items()}
    model = str(run.info["config"]["model"])
    tokenizer = load_tokenizer(model)
    reference = on_device(*load_policy(model))
    decodings = bench.decodings
    for decoding in decodings.values():
        generate(run, bench.prompts, reference, decoding, name=_name(0))
    for name, path in names.items():
        policy = on_device(load_trained(run, path), tokenizer)
        for decoding in decodings.values():
            generate(run, bench.prompts, policy, decoding, name=name)
        if "sampled" in decodings:
            rows = int(run.info["config"].get("row_tokens", 1024))
            measure_log_ratios(
                run, bench.prompts.name, policy, reference, decodings["sampled"], rows, name
            )


class _Answers(NamedTuple):
    """What a checkpoint's answers to a benchmark earned, by prompt id; log_ratios may be empty."""

    rewards: pd.Series
    wins: pd.Series  # against SFT: 1, 0.5 or 0
    log_ratios: pd.Series


def _rows(
    method: str, run: Run, benches: Mapping[str, Bench], judge: str
) -> list[dict[str, object]]:
    total = int(run.info["trained_steps"])
    rows: list[dict[str, object]] = []
    for kind in next(iter(benches.values())).labels:
        read = {name: _read(run, bench, judge, kind) for name, bench in benches.items()}
        groups = {MEAN_NAME: read} if len(read) > 1 else {}
        groups |= {name: {name: of} for name, of in read.items()}
        for benchmark, group in groups.items():
            for step in (0, *whole_checkpoints(run)):
                own = {name: of[step] for name, of in group.items()}
                row = {"benchmark": benchmark, "method": method, "step": step}
                row |= {"share": step / total, "decoding": kind}
                rows.append(row | _numbers(own, step))
    return rows


def _numbers(own: Mapping[str, _Answers], step: int) -> dict[str, object]:
    """The columns that the answers to one or several benchmarks fill."""
    reward = mean_over_benchmarks({name: of.rewards for name, of in own.items()})
    won = mean_over_benchmarks({name: of.wins for name, of in own.items()})
    row: dict[str, object] = {"n": reward.n, "reward": reward.mean}
    row |= {"reward_low": reward.low, "reward_high": reward.high}
    row |= {"win_rate": 100 * won.mean, "low": 100 * won.low, "high": 100 * won.high}
    if not step:
        return row | {"kl": 0.0, "kl_low": 0.0, "kl_high": 0.0}
    kl = mean_over_benchmarks({name: of.log_ratios for name, of in own.items()})
    return row | {"kl": kl.mean, "kl_low": kl.low, "kl_high": kl.high}


def _read(run: Run, bench: Bench, judge: str, kind: str) -> dict[int, _Answers]:
    """By optimizer step, 0 being SFT."""
    name = bench.prompts.name
    scores = run.table(f"judgements/{judge}-{name}.parquet")
    scores = scores[scores["decoding"] == bench.labels[kind]]
    ratios = pd.DataFrame(columns=["policy", "prompt_id", "policy_logp", "reference_logp"])
    if "sampled" in bench.labels:
        ratios = run.table(f"generations/{name}-log-probs.parquet")
    ratios["ratio"] = ratios["policy_logp"] - ratios["reference_logp"]
    start = _by_prompt(scores, _name(0), "reward")
    found = {}
    for step in (0, *whole_checkpoints(run)):
        own = _by_prompt(scores, _name(step), "reward") if step else start
        found[step] = _Answers(own, verdicts(own, start), _by_prompt(ratios, _name(step), "ratio"))
    return found


def _by_prompt(table: pd.DataFrame, policy: str, value: str) -> pd.Series:
    """The mean over a prompt's turns; one that is missing makes it missing."""
    turns = table[table["policy"] == policy].groupby("prompt_id", sort=False)[value]
    return turns.mean().where(turns.count() == turns.size())


def _name(step: int) -> str:
    """A checkpoint's name as a policy in files, where `trained` and `reference` may have answered
    other prompts; step 0 is SFT.
    """
    return f"step-{step}"

"""A run's checkpoints evaluated one by one: what a policy earns while it is trained."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from plc_core.analysis.statistics import bootstrap_mean
from plc_core.engine.checkpoints import load_trained, whole_checkpoints
from plc_core.engine.models import load_policy, load_tokenizer
from plc_core.evaluation.chain import on_device
from plc_core.evaluation.divergence import measure_log_ratios
from plc_core.evaluation.generate import generate
from plc_core.evaluation.judges.named import named_judge
from plc_core.evaluation.standing import (
    Bench,
    EvaluationConfig,
    has_log_ratios,
    is_answered,
    is_judged,
    open_bench,
    refuse_missing,
    score_answers,
)
from plc_core.evaluation.win_rate import win_rate
from plc_core.files import RunError
from plc_core.runs import Run


def evaluate_checkpoints(runs: Mapping[str, Run], config: EvaluationConfig) -> pd.DataFrame:
    """Judge the answers of every checkpoint to the first benchmark, by the first judge.

    Args:
        runs: by method; trained with `save_steps`, so that there is more than one checkpoint.
        config: benchmark, judge and decodings.

    Returns:
        One row a method, checkpoint and decoding, step 0 being SFT: method, step, share (of
        training), decoding, n, reward, reward_low, reward_high; win_rate, low, high against SFT
        (percent; 50 at step 0); kl, kl_low, kl_high (nats a response; NaN without sampling).

    Raises:
        RunError: where a run has one checkpoint only, or is not trained to its end; where
            `config.make` is False, for what would have to be answered or judged.
    """
    bench = open_bench(config.benchmarks[0], config, checkpoints=True)
    judge = named_judge(config.judges[0])
    rows = []
    for method, run in runs.items():
        steps = list(whole_checkpoints(run))
        if not run.is_trained or len(steps) < 2:
            raise RunError(
                f"The run {run.name!r} ({method}) has {len(steps)} checkpoints; train it to its "
                "end with save_steps, as 12, to see how it came there."
            )
        if not config.make:
            lacking = [] if _is_answered(run, bench) else [run.name]
            refuse_missing(f"answers of its checkpoints to {bench.prompts.name!r}", lacking)
            lacking = [] if is_judged(run, bench.prompts.name, judge) else [run.name]
            refuse_missing(f"scores of {judge.name!r} for them", lacking)
        _answer(run, bench)
        score_answers(run, bench.prompts.name, judge)
        rows += _rows(method, run, bench, judge.name)
    return pd.DataFrame(rows)


def _is_answered(run: Run, bench: Bench) -> bool:
    names = [_name(step) for step in whole_checkpoints(run)]
    known = "sampled" not in bench.labels or has_log_ratios(run, bench, names)
    return known and is_answered(run, bench, ["reference", *names])


def _answer(run: Run, bench: Bench) -> None:
    if _is_answered(run, bench):
        return
    names = {_name(step): path for step, path in whole_checkpoints(run).items()}
    model = str(run.info["config"]["model"])
    tokenizer = load_tokenizer(model)
    reference = on_device(*load_policy(model))
    decodings = bench.decodings or {}
    for decoding in decodings.values():
        generate(run, bench.prompts, reference, decoding, name="reference")
    for name, path in names.items():
        policy = on_device(load_trained(run, path), tokenizer)
        for decoding in decodings.values():
            generate(run, bench.prompts, policy, decoding, name=name)
        if "sampled" in decodings:
            rows = int(run.info["config"].get("row_tokens", 1024))
            measure_log_ratios(
                run, bench.prompts.name, policy, reference, decodings["sampled"], rows, name
            )


def _rows(method: str, run: Run, bench: Bench, judge: str) -> list[dict[str, object]]:
    name = bench.prompts.name
    scores = run.table(f"judgements/{judge}-{name}.parquet")
    ratios = pd.DataFrame(columns=["policy", "policy_logp", "reference_logp"])
    if "sampled" in bench.labels:
        ratios = run.table(f"generations/{name}-log-probs.parquet")
    ratios["ratio"] = ratios["policy_logp"] - ratios["reference_logp"]
    total = int(run.info["trained_steps"])
    rows: list[dict[str, object]] = []
    for kind, label in bench.labels.items():
        of_kind = scores[scores["decoding"] == label]
        sides = {
            policy: own.groupby("prompt_id", sort=False)["reward"].mean()
            for policy, own in of_kind.groupby("policy", sort=False)
        }
        start = sides["reference"]
        for step in (0, *whole_checkpoints(run)):
            own = sides[_name(step)] if step else start
            won, reward = win_rate(own, start).share, bootstrap_mean(own, seed=0)
            row = {"method": method, "step": step, "share": step / total, "decoding": kind}
            row |= {"n": reward.n, "reward": reward.mean}
            row |= {"reward_low": reward.low, "reward_high": reward.high}
            row |= {"win_rate": 100 * won.mean, "low": 100 * won.low, "high": 100 * won.high}
            kl = bootstrap_mean(ratios[ratios["policy"] == _name(step)]["ratio"], seed=0)
            row |= {"kl": kl.mean, "kl_low": kl.low, "kl_high": kl.high}
            rows.append(row | ({"kl": 0.0, "kl_low": 0.0, "kl_high": 0.0} if not step else {}))
    return rows


def _name(step: int) -> str:
    return f"step-{step}"

"""A run's checkpoints evaluated one by one: what a policy earns while it is trained."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from notebooks.studies.seed_win_rates import MEAN as MEAN_NAME
from plc_core.engine.checkpoints import load_trained, whole_checkpoints
from plc_core.engine.models.load import load_policy, load_tokenizer
from plc_core.engine.models.model_files import check_start
from plc_core.evaluation.chain import on_device
from plc_core.evaluation.comparison import CELL, MEAN
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
from plc_core.evaluation.judged import read_evaluation
from plc_core.evaluation.judges.named import named_judge
from plc_core.evaluation.methods import Contestant
from plc_core.runs import Run
from plc_core.storage.files import RunError

_RATES, _KL = ["win_rate", "low", "high"], ["kl", "kl_low", "kl_high"]
_COLUMNS = ["benchmark", "method", "step", "share", "decoding", "n"]
_COLUMNS += ["reward", "reward_low", "reward_high", *_RATES, *_KL]


def evaluate_checkpoints(runs: Mapping[str, Run], config: EvaluationConfig) -> pd.DataFrame:
    """Judge the answers of every checkpoint.

    Args:
        runs: by method; trained with `save_steps`, so that there is more than one checkpoint.
        config: benchmarks, one judge, and decodings.

    Returns:
        One row a benchmark, method, checkpoint and decoding, step 0 being SFT: benchmark, method,
        step, share (of training), decoding, n, reward, reward_low, reward_high; win_rate, low, high
        against SFT (percent; 50 at step 0); kl, kl_low, kl_high (nats per response; NaN without
        sampling). Of several benchmarks first come rows of `seed_win_rates.MEAN`, the mean over
        them, each weighing alike.

    Raises:
        RunError: where a run has one checkpoint only, or is not trained to its end; where
            `config.make` is False, for what would have to be answered or judged.
    """
    opened = [open_bench(source, config) for source in config.benchmarks]
    benches = {bench.prompts.name: bench for bench in opened}
    if len(benches) < len(opened):
        raise RunError(f"Two of the benchmarks {', '.join(config.benchmarks)} have one name.")
    judge = named_judge(config.judges[0])
    frames = []
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
        frames.append(_rows(method, run, benches, judge.name))
    return pd.concat(frames, ignore_index=True)


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
    check_start(run, reference.model, reference.identity["model"])
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


def _rows(method: str, run: Run, benches: Mapping[str, Bench], judge: str) -> pd.DataFrame:
    steps = {_name(step): step for step in (0, *whole_checkpoints(run))}
    evaluation = read_evaluation(
        [Contestant(name, run, answered_as=name) for name in steps],
        {name: bench.labels for name, bench in benches.items()},
        [judge],
        _name(0),
        {name: len(bench.prompts) for name, bench in benches.items()},
    )
    frames: list[pd.DataFrame] = []
    for keys in [CELL] if len(benches) == 1 else [MEAN, CELL]:
        side = [*keys, "method", "seed"]
        rates = evaluation.means() if keys is MEAN else evaluation.cells()
        kl = evaluation.kl([key for key in keys if key not in ("judge", "decoding")])
        table = evaluation.rewards(keys).rename(
            columns={"low": "reward_low", "high": "reward_high"}
        )
        table = table.merge(rates[[*side, *_RATES]], "left", side)
        frames.append(table.merge(kl.drop(columns="n"), "left").assign(place=len(frames)))
    table = pd.concat(frames, ignore_index=True).fillna({"benchmark": MEAN_NAME})
    table["step"] = table["method"].map(steps)
    table.loc[table["step"] == 0, _RATES] = 50.0
    table.loc[table["step"] == 0, _KL] = 0.0
    table = table.assign(method=method, share=table["step"] / int(run.info["trained_steps"]))
    for name in ("benchmark", "decoding"):  # in their own order
        table[name] = pd.Categorical(table[name], list(dict.fromkeys(table[name])))
    table = table.sort_values(["decoding", "place", "benchmark", "step"])
    kinds = {"benchmark": "str", "decoding": "str"} | dict.fromkeys(_KL, "float64")
    return table.astype(kinds)[_COLUMNS]


def _name(step: int) -> str:
    """A checkpoint's name as a policy in files, where `trained` and `reference` may have answered
    other prompts; step 0 is SFT.
    """
    return f"step-{step}"

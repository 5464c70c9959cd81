"""From runs to judged answers: generate, judge and read back, going on where it was cut off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from plc_core.engine.checkpoints import load_trained
from plc_core.engine.models.load import load_policy, load_tokenizer
from plc_core.engine.models.model_files import check_start
from plc_core.evaluation.comparison import GROUP, Evaluation
from plc_core.evaluation.completeness import (
    Bench,
    EvaluationConfig,
    has_log_ratios,
    is_answered,
    is_judged,
    kept_verdicts,
    open_bench,
    refuse_missing,
    score_answers,
)
from plc_core.evaluation.divergence import measure_log_ratios
from plc_core.evaluation.generate import generate
from plc_core.evaluation.judged import read_evaluation
from plc_core.evaluation.judges.judgements import compare_generations
from plc_core.evaluation.judges.language_model import LLMJudge
from plc_core.evaluation.judges.named import Judge, check_judges, named_judge
from plc_core.evaluation.methods import Contestant, check_contestants
from plc_core.evaluation.policies import LocalPolicy, Policy
from plc_core.runs import Run
from plc_core.storage.files import RunError


def evaluate_runs(
    entries: Sequence[Contestant], config: EvaluationConfig, baseline: str = "DPO"
) -> Evaluation:
    """Answer every benchmark with every policy, judge the answers, and read the judgements.

    All of it is kept in the run folders and, by content, in the cache: what is there and fits is
    not made again, and after a kill a second call goes on with the batch that was under way.

    Args:
        entries: who is compared; `contestants` makes them of runs by method.
        baseline: the method that win rates are against; one in every group of pairs, model, seed.

    Raises:
        RunError, DataError, ModelError: a sentence, where something cannot be compared, answered or
            judged; and where `config.make` is False, for what would have to be.
    """
    check_contestants(entries, baseline)
    for judge_names in (config.judges, config.pairwise_judges):
        check_judges(judge_names)
    opened = [open_bench(source, config) for source in config.benchmarks]
    benches = {bench.prompts.name: bench for bench in opened}
    if len(benches) < len(opened):
        raise RunError(f"Two of the benchmarks {', '.join(config.benchmarks)} have one name.")
    entries = _with_names(entries, dict(zip(config.benchmarks, benches, strict=True)))
    asked = {name: [entry for entry in entries if entry.answers(name)] for name in benches}
    if not config.make:
        for name, bench in benches.items():
            lacking = [e.run.name for e in asked[name] if not _is_answered(e, bench)]
            refuse_missing(f"answers to {name!r}", lacking)
    references: dict[str, LocalPolicy] = {}
    for entry in entries:
        own: list[LocalPolicy] = []  # loaded once for all benchmarks, and only if it is asked
        for name, bench in benches.items():
            if entry.answers(name):
                _answer(entry, bench, references, own)
    references.clear()  # a judge may need the memory
    judges: list[str] = []
    for named in config.judges:
        judge = named_judge(named)
        judges.append(judge.name)
        for name in benches:
            if not config.make:
                lacking = [e.run.name for e in asked[name] if not is_judged(e.run, name, judge)]
                refuse_missing(f"scores of {judge.name!r} on {name!r}", lacking)
            for entry in asked[name]:
                score_answers(entry.run, name, judge)
    versus = [
        _compare_all(asked, benches, named_judge(name), baseline, config.make)
        for name in config.pairwise_judges
    ]
    labels = {name: bench.labels for name, bench in benches.items()}
    sizes = {name: len(bench.prompts) for name, bench in benches.items()}
    return read_evaluation(entries, labels, judges, baseline, sizes, versus, config.incomplete)


def _with_names(entries: Sequence[Contestant], names: Mapping[str, str]) -> list[Contestant]:
    """The same, with their benchmarks by name; RunError for a benchmark that nobody answers."""
    for source in names:
        if not any(entry.answers(source) for entry in entries):
            raise RunError(f"No policy is asked the benchmark {source!r}: leave it out.")
    return [
        entry
        if entry.benchmarks is None
        else entry._replace(benchmarks=tuple(names[source] for source in entry.benchmarks))
        for entry in entries
    ]


def _is_answered(entry: Contestant, bench: Bench) -> bool:
    """Whether nothing is left to answer; False for a server, whose answers no checkpoint dates."""
    if entry.policy is not None:
        return False
    known = "sampled" not in bench.decodings
    return (known or has_log_ratios(entry.run, bench)) and is_answered(
        entry.run, bench, ("trained", "reference")
    )


def _answer(
    entry: Contestant, bench: Bench, references: dict[str, LocalPolicy], loaded: list[LocalPolicy]
) -> None:
    run, name = entry.run, bench.prompts.name
    if _is_answered(entry, bench):
        return
    model = str(run.info.get("config", {}).get("model"))
    if entry.policy is None and not loaded:
        loaded.append(on_device(load_trained(run), load_tokenizer(model)))
    own: Policy = entry.policy or loaded[0]
    for decoding in bench.decodings.values():
        generate(run, bench.prompts, own, decoding)
    if entry.policy is not None:
        return
    if model not in references:
        references[model] = on_device(*load_policy(model))
    reference = references[model]
    check_start(run, reference.model, reference.identity["model"])
    for decoding in bench.decodings.values():
        generate(run, bench.prompts, reference, decoding, name="reference")
    if "sampled" in bench.decodings and isinstance(own, LocalPolicy):
        rows = int(run.info["config"].get("row_tokens", 1024))
        measure_log_ratios(run, name, own, reference, bench.decodings["sampled"], rows)


def on_device(model: Any, tokenizer: Any) -> LocalPolicy:
    """A policy on the GPU, if there is one."""
    return LocalPolicy(model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer)


def _compare_all(
    asked: Mapping[str, Sequence[Contestant]],
    benches: dict[str, Bench],
    judge: Judge,
    baseline: str,
    make: bool,
) -> pd.DataFrame:
    """Verdicts of a pairwise judge on every contestant's answers beside the baseline's."""
    if not isinstance(judge, LLMJudge):
        raise RunError(f"{judge.name!r} scores single answers; two side by side need an LLM judge.")
    frames, lacking = [], []
    for name, bench in benches.items():
        sides = {entry.group: entry for entry in asked[name] if entry.method == baseline}
        for entry in asked[name]:
            if entry.method == baseline:
                continue
            other = sides[entry.group].run
            for kind, label in bench.labels.items():
                if make:
                    verdicts = compare_generations(entry.run, name, judge, other, decoding=label)
                elif (kept := kept_verdicts(entry.run, name, judge, other, label)) is not None:
                    verdicts = kept
                else:
                    lacking.append(entry.run.name)
                    continue
                where: dict[str, Any] = dict(zip(GROUP, entry.group, strict=True))
                where |= {"judge": judge.name, "benchmark": name, "method": entry.method}
                for column, run in (("characters", entry.run), ("baseline_characters", other)):
                    where[column] = _characters(run, name, label, verdicts)
                frames.append(verdicts.assign(**where, decoding=kind))
    refuse_missing(f"verdicts of {judge.name!r} beside {baseline}", lacking)
    return pd.concat(frames, ignore_index=True)


def _characters(run: Run, benchmark: str, label: str, verdicts: pd.DataFrame) -> list[int]:
    """Characters of the trained policy's answers that verdicts are about, in their order."""
    keys = ["prompt_id", "turn"]
    path = run.path / "generations" / f"{benchmark}.parquet"
    answers = run.read_table(path, [*keys, "policy", "decoding", "response"]).to_pandas()
    own = answers[(answers["policy"] == "trained") & (answers["decoding"] == label)]
    lengths = own.set_index(keys)["response"].str.len()
    return [int(n) for n in lengths.loc[pd.MultiIndex.from_frame(verdicts[keys])]]

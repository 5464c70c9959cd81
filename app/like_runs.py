"""The questions of the page Verdict that other runs on the same pairs take part in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from inspection.judged_answers import (
    judged,
    judgement_files,
    kl_by_run,
    kl_control,
    nearest_dpo,
    prompt_set,
)
from inspection.step_metrics import noise_of
from inspection.verdicts import Answer, beats_dpo, noisy
from listing import listed, training_runs
from reading import config_of, open_training, shown_errors

from plc_core.evaluation.win_rate import JoinError
from plc_core.runs import Run
from plc_core.runs.listing import RunSummary

SAME = ("data", "num_pairs", "seed", "flip_rate", "flips", "tie_rate", "annotator")
"""Parameters that make the pairs and their labels."""

MOST_ESTIMATES = 3
"""Other runs whose estimate of the noise is told: files of each are read for it."""


def against_dpo(root: Path, run: Run) -> Answer:
    """The run against its KL control among the runs of the same pairs, model and prompts."""
    if (objective := config_of(run).get("objective", "plc")) != "plc":
        trained = str(objective).upper()
        return Answer(f"asked of PLC-DPO runs; this one trained with {trained}", asked=False)
    own = [name for name, kind in judgement_files(run).items() if kind == "scores"]
    if not own:
        return Answer("no answers of this run were judged")
    model = config_of(run).get("model")
    alike = [
        other.name
        for other in _on_same_pairs(root, run)
        if other.config.get("objective") == "dpo" and other.config.get("model") == model
    ]
    said = Answer("no DPO run on these pairs answered the same prompts")
    for name in own:
        others = {run.name: run}
        for other in alike:
            with shown_errors(other):
                opened = open_training(root, other)
                if name in judgement_files(opened) and prompt_set(opened, name) == prompt_set(
                    run, name
                ):
                    others[other] = opened
        kls = kl_by_run(others, name)
        objectives = {n: str(config_of(r).get("objective")) for n, r in others.items()}
        near = nearest_dpo(kls, objectives, run.name)
        if near is None:
            continue
        if kl_control(kls, objectives, run.name) is None:
            said = Answer(
                f"no DPO run moved as far: {kls[run.name].mean:.2f} nats, {near} "
                f"{kls[near].mean:.2f}"
            )
            continue
        table = judged({n: others[n] for n in (run.name, near)}, name)
        try:
            return beats_dpo(table, run.name, near)
        except JoinError as error:
            said = Answer(str(error))
    return said


def noise(root: Path, run: Run) -> Answer:
    """How noisy the data are by this run's margins; beside it what others say of the same pairs."""
    answer = noisy(noise_of(run))
    others: list[str] = []
    for other in _on_same_pairs(root, run):
        if len(others) == MOST_ESTIMATES:
            break
        with shown_errors(other.name):
            opened = open_training(root, other.name)
            same = _fingerprint(opened) == _fingerprint(run)
            if same and (estimate := noise_of(opened)):
                others.append(f"{other.name} {estimate.short}")
    if not others:
        return answer
    said = f"Other runs, same pairs: {'; '.join(others)}"
    return replace(answer, beside=said)


def _on_same_pairs(root: Path, run: Run) -> Iterator[RunSummary]:
    """The other training runs whose parameters made the same pairs, the newest first."""
    config = config_of(run)
    for other in training_runs(listed(root)):
        is_another = other.name != run.name and other.problem is None
        if is_another and all(other.config.get(name) == config.get(name) for name in SAME):
            yield other


def _fingerprint(run: Run) -> object:
    data = run.info.get("data")
    return data.get("fingerprint") if isinstance(data, dict) else None

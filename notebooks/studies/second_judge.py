"""A second judge on the same responses: the paper's check with a commercial model."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import pandas as pd
from pydantic import Field, model_validator

from notebooks.studies.judge_agreement import JudgeAgreement, agreement_of_judges
from notebooks.studies.win_rate_study import DPO, PLC, MethodsConfig, entries_of
from plc_core.analysis.statistics import MeanInterval, spearman
from plc_core.engine.config import ObjectiveName
from plc_core.engine.stages.reward_model import RewardModelConfig, train_reward_model
from plc_core.evaluation.comparison import SFT, Evaluation
from plc_core.evaluation.methods import Contestant
from plc_core.evaluation.results import bounds, bracketed, control_text, interval
from plc_core.evaluation.win_rate import verdicts
from plc_core.parameters import ParameterError, checked
from plc_core.runs import Run, open_run, resolve
from plc_core.storage.cache import content_hash
from plc_core.storage.files import RunError
from plc_core.storage.paths import project_path

TRAINED = "trained"
"""The judge that the notebook trains itself, among the names of judges."""


POOLED = "all, pooled"
"""The row of the prompts of all benchmarks, each weighing alike."""


class JudgesConfig(MethodsConfig):
    """The parameters of `notebooks/14_judges.ipynb`."""

    several_judges: ClassVar[bool] = True
    methods: list[ObjectiveName] = Field(["rdpo-length", "gamma-po", "ropo", "plc"], min_length=1)
    judges: list[str] = Field(["gold", TRAINED], min_length=1)
    judge: dict[str, Any] = Field(default_factory=lambda: {"seed": 100})  # of RewardModelConfig

    @model_validator(mode="after")
    def _judge(self) -> JudgesConfig:
        if TRAINED in self.judges:
            try:
                checked({**self.judge, "name": "judge"}, RewardModelConfig)
            except ParameterError as error:
                raise ParameterError(f"judge: {error}") from None
        return self


class Judges(NamedTuple):
    """The contestants, the configuration with judges by their folders, and the trained judge."""

    entries: list[Contestant]
    config: JudgesConfig
    judge: Run | None


def judges_setup(config: JudgesConfig) -> Judges:
    """Train what is missing: the policies, and the judge if its name is among the judges."""
    entries = entries_of(config, config.compared())
    if TRAINED not in config.judges:
        return Judges(entries, config, None)
    run = local_judge(config.runs_dir, config.make, **config.judge)
    names = [str(run.path / "model") if name == TRAINED else name for name in config.judges]
    return Judges(entries, config.model_copy(update={"judges": names}), run)


def local_judge(runs_dir: str, make: bool = True, **settings: str | int | float | None) -> Run:
    """The reward model of these settings, trained where it is missing.

    Args:
        runs_dir: where run folders lie.
        make: False raises where it is missing.
        settings: of `RewardModelConfig`, as model, data, num_pairs, seed. For the embedded world
            another seed than the policies' gives other pairs, with clean labels.

    Returns:
        Its run; the judge is `<run>/model`, and its accuracy on held-out prompts is in run.json.

    Raises:
        RunError: where it is missing and not to be made.
    """
    plain = RewardModelConfig(name="judge", **settings)  # type: ignore[arg-type]
    name = f"judge-{content_hash(plain.model_dump(exclude={'name', 'runs_dir'}))[:10]}"
    folder = resolve(project_path(runs_dir), name)
    if folder.exists():
        run = open_run(folder)
        if run.is_trained and (folder / "model" / "config.json").exists():
            return run
    if not make:
        raise RunError(
            f"The reward model {name!r} is not in {project_path(runs_dir)}; set make to true to "
            "train it, which takes about a minute in the embedded world."
        )
    return train_reward_model(plain.model_copy(update={"name": name, "runs_dir": runs_dir}))


def with_names(evaluation: Evaluation, judge: Run | None) -> Evaluation:
    """The evaluation with the trained judge called a reward model, and not by its folder."""
    if judge is None:
        return evaluation
    judged = evaluation.judged
    return replace(evaluation, judged=judged.replace({"judge": {judge.name: "reward model"}}))


def judge_accuracy(run: Run) -> str:
    """What the trained judge gets right, in a sentence."""
    held_out, pairs = run.info["held_out"], run.info["data"]["train"]
    right, low, high = (100 * held_out[name] for name in ("accuracy", "low", "high"))
    return (
        f"The second judge is a reward model trained on {pairs:,} other pairs with clean labels; "
        f"on {held_out['n']:,} held-out pairs it is right on {right:.1f} % [{low:.1f}, {high:.1f}]."
    )


def judges_table(evaluation: Evaluation, table: pd.DataFrame) -> pd.DataFrame:
    """Single scores and win rates by each judge, means over benchmarks.

    One row a method; for each decoding and judge the mean score, the win rate against DPO and
    against the DPO of like KL; then the KL.

    Args:
        evaluation: judged answers.
        table: of `means_of`.
    """
    rows: dict[str, dict[tuple[str, str], str]] = {}
    for method in evaluation.methods:
        row: dict[tuple[str, str], str] = {}
        own = table[table["method"] == method]
        for (decoding, judge), part in own.groupby(["decoding", "judge"], sort=False):
            head = f"{judge}, {decoding}"
            row[head, "single"] = interval(part, "reward", "reward_low", "reward_high", 2)
            row[head, "WR"] = interval(part, "win_rate", "low", "high")
            row[head, "WR at the nearest KL"] = interval(part, "over", "over_low", "over_high")
        one = own.drop_duplicates("seed")
        row["KL, nats", ""] = interval(one, "kl", "kl_low", "kl_high", 2)
        row["control (KL)", ""] = control_text(own) or "–"
        row["n", ""] = f"{own['n'].iloc[0]:,}"
        rows[method] = row
    frame = pd.DataFrame(list(rows.values()), index=pd.Index(list(rows), name="method"))
    columns = pd.MultiIndex.from_tuples([*frame.columns.to_flat_index()])
    return frame.set_axis(columns, axis=1).fillna("–")


def judge_agreement(evaluation: Evaluation) -> tuple[pd.DataFrame, dict[str, JudgeAgreement]]:
    """How far the first two judges agree on who wins against DPO, and on single answers.

    Returns:
        A table, a row a method, decoding and benchmark, and of several benchmarks (or seeds) a row
        of their prompts pooled, which says so: raw agreement, kappa, agreement where neither calls
        a tie, Spearman's correlation of the scores, n; and the agreements themselves.
    """
    judged = evaluation.judged
    first, second = list(dict.fromkeys(judged["judge"]))[:2]
    rows, found = {}, {}
    for decoding, of_decoding in judged.groupby("decoding", sort=False):
        parts = {str(name): own for name, own in of_decoding.groupby("benchmark", sort=False)}
        if len(parts) > 1:
            parts[POOLED] = of_decoding
        for method, (benchmark, part) in itertools.product(
            [m for m in evaluation.methods if m != SFT and not m.startswith(DPO)], parts.items()
        ):
            sides = []
            for judge in (first, second):
                scores = part[part["judge"] == judge]
                rewards = scores.set_index(["seed", "benchmark", "prompt_id"])
                own, base = (rewards[rewards["method"] == m]["reward"] for m in (method, DPO))
                sides.append((verdicts(own, base), own))
            both = agreement_of_judges(sides[0][0], sides[1][0])
            key = f"{method}, {decoding}, {benchmark}"
            found[key] = both
            correlation = spearman(sides[0][1], sides[1][1].loc[sides[0][1].index])
            rho = (correlation.rho, correlation.low, correlation.high)
            rows[(method, str(decoding), benchmark)] = {
                "same verdict": _share(both.raw),
                "Cohen's kappa": _bounds(*both.kappa[:3]),
                "same winner, no ties": f"{_share(both.decided)} (n={both.decided.n:,})",
                "Spearman of scores": _bounds(*rho),
                "n": f"{both.raw.n:,}",
            }
    frame = pd.DataFrame(list(rows.values()))
    index = pd.MultiIndex.from_tuples(list(rows), names=["method", "decoding", "benchmark"])
    return frame.set_axis(index), found


def judges_sentence(table: pd.DataFrame) -> str:
    """Whether the two judges put PLC-DPO, or the last method, on the same side of 50 %.

    Args:
        table: of `means_of`.
    """
    method = PLC if PLC in set(table["method"]) else str(table["method"].iloc[-1])
    parts = []
    for decoding, part in table[table["method"] == method].groupby("decoding", sort=False):
        sides = {str(judge): bounds(own) for judge, own in part.groupby("judge", sort=False)}
        said = " and ".join(
            f"{found.mean:.1f} % [{found.low:.1f}, {found.high:.1f}] by {judge}"
            for judge, found in sides.items()
        )
        open_ones = [judge for judge, found in sides.items() if found.low <= 50 <= found.high]
        same = len({found.mean > 50 for found in sides.values()}) == 1
        side = f"{'on the same side' if same else 'on opposite sides'} of 50 %"
        if open_ones:
            side = f"50 % lies inside the interval of {' and '.join(open_ones)}"
        parts.append(f"{said} in {decoding} decoding ({side})")
    return f"Against DPO on the same data, {method} wins {'; '.join(parts)}."


def _share(value: MeanInterval) -> str:
    if not value.n:
        return "n/a"
    return f"{100 * value.mean:.0f} % [{100 * value.low:.0f}, {100 * value.high:.0f}]"


def _bounds(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return "n/a"
    return f"{value:.2f}" if math.isnan(low) else bracketed((value, low, high), 2)

"""Does the routing confirm only what the policy believes? The runs and probes of the controls."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd
from pydantic import Field

from plc_core.analysis.studies.confirmation import Disagreement
from plc_core.analysis.studies.pooling import of_calibration
from plc_core.evaluation.kl_control import Control, win_rates
from plc_core.evaluation.kl_matching import Judged
from plc_core.evaluation.probe import (
    Calibrated,
    check_probe,
    held_out_pairs,
    labelled_by_one,
    pair_rewards,
    score_probe,
)
from plc_core.experiments.label_noise import CONTROL, controls_follow, controls_of
from plc_core.experiments.study import JudgedConfig, judged_by, trained
from plc_core.runs import Run


class ConfirmationConfig(JudgedConfig):
    """The parameters of `notebooks/08_self_confirmation.ipynb`."""

    seeds: list[int] = Field([0, 1], min_length=1)
    rate: float = Field(0.2, ge=0, le=1)  # share of flipped labels
    warmup: float = Field(0.3, gt=0, lt=1)  # share of training that is plain DPO, in place of 7 %
    held_out: int = Field(3000, ge=1)  # pairs that no run was trained on
    reward_model: str = "gold"  # the world's truth, or a reward model's folder or name
    calibration: Calibrated = "checkpoint"

    @property
    def long(self) -> str:
        """The name of the PLC-DPO with the longer warm-up."""
        return f"PLC-DPO, {self.warmup:.0%} warm-up"

    def variants(self) -> dict[str, dict[str, Any]]:
        """PLC-DPO, plain DPO, and PLC-DPO with the longer warm-up, on the same labels."""
        options = {"objective_options": {"warmup": self.warmup}}
        return {
            "PLC-DPO": {"objective": "plc", "flip_rate": self.rate},
            "DPO (shadow)": {"objective": "dpo", "flip_rate": self.rate},
            self.long: {"objective": "plc", "flip_rate": self.rate, **options},
        }


class ConfirmationRuns(NamedTuple):
    """Runs on the same flipped labels, one a seed, and the controls of both PLC-DPOs."""

    runs: dict[str, list[Run]]
    controls: dict[str, Control]  # by the PLC-DPO that each moved as far as
    long: str  # the name of the one with the longer warm-up
    judged: Judged

    @property
    def named(self) -> dict[str, list[Run]]:
        """All of them under one name each, for the report's record."""
        return self.runs | {f"{CONTROL} of {m}": own.runs for m, own in self.controls.items()}


def confirmation_runs(config: ConfirmationConfig) -> ConfirmationRuns:
    """PLC-DPO, the same with a longer warm-up, plain DPO, and their KL controls."""
    data = {"flip_rate": config.rate}
    ready = trained(config, config.variants(), then=controls_follow(config, 2))
    judged = judged_by(config)
    dpo = [ready["DPO (shadow)"]]
    controls: dict[str, Control] = {}
    for method in ("PLC-DPO", config.long):
        controls |= controls_of(
            config,
            {method: (ready[method], dpo)},
            {method: data},
            judged,
            {method: f"KL control of {method}"},
        )
        dpo.append(controls[method].runs)
    return ConfirmationRuns(ready, controls, config.long, judged)


def confirmation_win_rates(found: ConfirmationRuns) -> pd.DataFrame:
    """Win rates of both PLC-DPOs against same-data DPO, each beside its own control."""
    frames = []
    for method, control in found.controls.items():
        methods = {method: found.runs[method], f"{CONTROL}, β={control.beta:g}": control.runs}
        against = found.runs["DPO (shadow)"]
        frames.append(win_rates(methods, against, control.runs, judged=found.judged))
    whole = pd.concat(frames, ignore_index=True)
    return whole.drop_duplicates(["method", "decoding", "benchmark"]).reset_index(drop=True)


def disagreements(
    config: ConfirmationConfig, runs: dict[str, list[Run]]
) -> dict[str, Disagreement]:
    """How q_flip of each policy meets a reward that knows nothing of the policy; seeds pooled.

    In the world held-out pairs get the labels of one simulated annotator, who errs, since the
    true labels never disagree with the gold reward.
    """
    return {method: _disagreement(config, own) for method, own in runs.items()}


def _disagreement(config: ConfirmationConfig, runs: list[Run]) -> Disagreement:
    frames = []
    for run in runs:
        name = f"disagreement-{config.held_out}"
        check_probe(run, name, config.make)
        pairs = held_out_pairs(run, config.held_out)
        if run.info["config"]["data"] == "world":
            pairs = labelled_by_one(pairs, int(run.info["config"]["seed"]))
        scores = score_probe(run, name, pairs, config.make)
        table = of_calibration(scores, config.calibration)
        if config.reward_model == "gold":
            table = table.assign(
                reward_chosen=table["score_chosen"], reward_rejected=table["score_rejected"]
            )
        else:
            table = table.merge(pair_rewards(pairs, config.reward_model, config.make), on="pair_id")
        frames.append(table)
    table = pd.concat(frames, ignore_index=True)
    return Disagreement(table["q_flip"], table["reward_chosen"], table["reward_rejected"])

"""Does the routing confirm only what the policy believes? The runs and probes of the controls."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd
from pydantic import Field

from notebooks.studies.confirmation_phases import Disagreement
from notebooks.studies.kl_control import CONTROL, Control, controls_follow, controls_of
from notebooks.studies.routing_probe import (
    Calibrated,
    check_probe,
    held_out_pairs,
    labelled_by_one,
    score_probe,
)
from notebooks.studies.seed_win_rates import win_rates
from notebooks.studies.study import JudgedConfig, Share, judged_by, trained
from plc_core.analysis.routing.pooling import mean_of_seeds, of_calibration
from plc_core.data import flip_labels
from plc_core.evaluation.judged import JudgedRuns
from plc_core.evaluation.judges.reward_model import pair_rewards
from plc_core.runs import Run

PLC, DPO = "PLC-DPO", "DPO (shadow)"


class ConfirmationConfig(JudgedConfig):
    """The parameters of `notebooks/08_self_confirmation.ipynb`."""

    seeds: list[int] = Field([0, 1], min_length=1)
    rate: float = Field(0.2, ge=0, le=1)  # share of flipped labels
    warmup: float = Field(0.3, gt=0, lt=1)  # share of training before the correction begins
    learning_rate_warmup: Share | None = None  # of the same two arms; None is as warmup
    held_out: int = Field(3000, ge=1)  # pairs that no run was trained on
    reward_model: str = "gold"  # the world's truth, or a reward model's folder or name
    calibration: Calibrated = "checkpoint"

    @property
    def extended(self) -> dict[str, str]:
        """The names of both arms with the longer warm-up, by that of the arm without."""
        return {arm: f"{arm}, {self.warmup:.0%} warm-up" for arm in (PLC, DPO)}

    @property
    def rises(self) -> dict[str, float]:
        """The parameter of 01_train that both arms with the longer warm-up have."""
        share = self.learning_rate_warmup
        return {"learning_rate_warmup": self.warmup if share is None else share}

    def variants(self) -> dict[str, dict[str, Any]]:
        """PLC-DPO and plain DPO, and both with the longer warm-up, on the same labels.

        The paper extends the warm-up "for PLC-DPO and DPO" and does not say which one. Plain DPO
        has no correction to put off, only a learning rate that rises: so that rises longer in
        both, and PLC-DPO's correction begins later as well.
        """
        data = {"flip_rate": self.rate}
        options = {"objective_options": {"warmup": self.warmup}}
        return {
            PLC: {"objective": "plc", **data},
            DPO: {"objective": "dpo", **data},
            self.extended[PLC]: {"objective": "plc", **data, **options, **self.rises},
            self.extended[DPO]: {"objective": "dpo", **data, **self.rises},
        }


class ConfirmationRuns(NamedTuple):
    """Runs on the same flipped labels, one a seed, and the controls of both PLC-DPOs."""

    runs: dict[str, list[Run]]
    controls: dict[str, Control]  # by the PLC-DPO that each moved as far as; empty without
    baselines: dict[str, str]  # the DPO of the same warm-up, by the PLC-DPO
    judged: JudgedRuns

    @property
    def named(self) -> dict[str, list[Run]]:
        """All of them under one name each, for the report's record."""
        return self.runs | {f"{CONTROL} of {m}": own.runs for m, own in self.controls.items()}


def confirmation_runs(config: ConfirmationConfig) -> ConfirmationRuns:
    """PLC-DPO and plain DPO, both with a longer warm-up, and the KL controls of the PLC-DPOs."""
    ready = trained(config, config.variants(), then=controls_follow(config, 2))
    judged = judged_by(config)
    baselines = {PLC: DPO, config.extended[PLC]: config.extended[DPO]}
    data: dict[str, dict[str, Any]] = {
        PLC: {"flip_rate": config.rate},
        config.extended[PLC]: {"flip_rate": config.rate, **config.rises},
    }
    controls = controls_of(
        config,
        {method: (ready[method], [ready[dpo]]) for method, dpo in baselines.items()},
        data,
        judged,
        {method: f"KL control of {method}" for method in baselines},
    )
    return ConfirmationRuns(ready, controls, baselines, judged)


def confirmation_win_rates(found: ConfirmationRuns) -> pd.DataFrame:
    """Win rates of both PLC-DPOs against the DPO of the same labels and warm-up.

    The columns of `seed_win_rates.win_rates` with baseline in front. Each PLC-DPO stands beside its
    own control, and DPO with the longer warm-up beside DPO without.
    """
    frames = []
    for method, dpo in found.baselines.items():
        methods = {method: found.runs[method]}
        control = f"{CONTROL} of {method}" if method in found.controls else None
        if control:
            methods[control] = found.controls[method].runs
        frames.append(_against(found, methods, dpo, control))
    plain, longer = found.baselines.values()
    frames.append(_against(found, {longer: found.runs[longer]}, plain, None))
    return pd.concat(frames, ignore_index=True)


def _against(
    found: ConfirmationRuns, methods: dict[str, list[Run]], dpo: str, control: str | None
) -> pd.DataFrame:
    table = win_rates(found.judged.together({**methods, dpo: found.runs[dpo]}, dpo), control)
    table.insert(0, "baseline", dpo.replace(" (shadow)", ""))
    return table


def held_out_flips(
    config: ConfirmationConfig, runs: dict[str, list[Run]]
) -> dict[str, pd.DataFrame]:
    """The routing of held-out pairs, `rate` of whose labels are flipped, by policy.

    Which are flipped is the same for all training seeds; a pair that several seeds were shown
    counts once, with its mean over them.
    """
    found = {}
    for method, own in runs.items():
        frames = []
        for run in own:
            name = f"flips-{config.rate:g}-{config.held_out}"
            check_probe(run, name, config.make)
            pairs = flip_labels(held_out_pairs(run, config.held_out), config.rate, seed=0)
            scores = score_probe(run, name, pairs, config.make)
            frames.append(of_calibration(scores, config.calibration))
        found[method] = mean_of_seeds(frames)
    return found


def disagreements(
    config: ConfirmationConfig, runs: dict[str, list[Run]]
) -> dict[str, Disagreement]:
    """How q_flip of each policy meets a reward that knows nothing of the policy.

    A pair that several training seeds were shown counts once, with its mean over them. In the world
    held-out pairs get the labels of one simulated annotator, who errs, since the true labels never
    disagree with the gold reward.
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
    table = mean_of_seeds(frames)
    return Disagreement(table["q_flip"], table["reward_chosen"], table["reward_rejected"])

"""The record of training: one row for each pair and visit, one row for each optimizer step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import Tensor

from plc_core.files import RunError
from plc_core.objective import FlipPosterior, ObjectiveOutput, PairLogps, Router, Routing
from plc_core.objective.reduction import gather_over_ranks
from plc_core.progress import SECONDS_BETWEEN_STATUS
from plc_core.runs import Run
from plc_core.runs.visit_files import VISITS_SCHEMA

_VALUES = [*VISITS_SCHEMA.names[3:], "loss", "noise_rate", "noise_low", "noise_high"]
_STEPS_A_FILE = 16
_SECONDS_BETWEEN_FILES = 10.0


class VisitRecorder:
    """Collects what happened to every pair and writes it to the run folder.

    The micro-batches of a step stay on the device until the step's backward is done: one transfer
    an optimizer step. Writes happen on the main process: every few steps or seconds, at
    checkpoints, and when training ends in whatever way.

    Args:
        run: the run folder.
        pair_ids: the id of each row of the training set.
        beta: scale of the margin, to log the rewards beta * log(pi/pi_ref).
        posterior: reads how likely each label is reversed; a new one where none is given.
    """

    def __init__(
        self,
        run: Run,
        pair_ids: Sequence[str],
        beta: float,
        posterior: FlipPosterior | None = None,
    ) -> None:
        self.run = run
        self.pair_ids = np.asarray(pair_ids)
        self.beta = beta
        self.posterior = posterior or FlipPosterior()
        self._micro_batches: list[tuple[Tensor, Tensor]] = []
        self._steps: list[dict[str, Any]] = []
        self._metrics: list[dict[str, Any]] = []
        self._progress: tuple[int, int] | None = None  # steps done, and of the run
        self._status_written = 0.0
        self._flushed = time.monotonic()

    def add(
        self, index: Tensor, logps: PairLogps, out: ObjectiveOutput, routing: Routing | None
    ) -> None:
        """Take a micro-batch of visits; `index` [B] are rows of the training set."""
        nothing = torch.full_like(out.margin, torch.nan)
        routed = routing if routing is not None else Routing(*[nothing] * 6)
        columns = [out.margin, *routed, *(x.detach() for x in logps[:4])]
        # p_flip is of the whole step: close_step puts it here.
        columns += [nothing, out.loss.detach()]
        self._micro_batches.append((index, torch.stack([c.to(torch.float64) for c in columns], 1)))

    def close_step(self, step: int, epoch: float) -> None:
        """Gather the step's visits over the ranks, after its backward and before its update.

        Raises:
            RunError: naming the pairs, where a log-prob or margin is not finite.
        """
        places = torch.cat([i for i, _ in self._micro_batches])
        table = self._with_posterior(places, torch.cat([v for _, v in self._micro_batches]))
        index, values = places.cpu().numpy(), table.cpu().numpy()
        self._micro_batches = []
        if PartialState().num_processes > 1:
            parts = gather_object([(index, values)])
            index = np.concatenate([i for i, _ in parts])
            values = np.concatenate([v for _, v in parts])
        # The margin alone: through the EMA, one broken margin breaks the losses of all the others.
        broken = ~np.isfinite(values[:, _VALUES.index("margin")])
        if broken.any():
            raise self.not_finite(index[broken])
        visits = {
            "pair_id": self.pair_ids[index],
            "step": np.full(len(index), step),
            "epoch": np.full(len(index), epoch),
        }
        self._steps.append(visits | dict(zip(_VALUES, values.T, strict=True)))

    def _with_posterior(self, places: Tensor, values: Tensor) -> Tensor:
        """Values [B, V] with p_flip and the noise rate, from the steps strictly before this one."""
        margins = values[:, _VALUES.index("margin")]
        values[:, _VALUES.index("p_flip")] = self.posterior(margins)
        noise = torch.stack(self.posterior.estimate(values.device))
        # In the order of the training set, whichever rank and micro-batch had which pair.
        order = gather_over_ranks(places)[0].argsort()
        self.posterior.observe(gather_over_ranks(margins)[0][order])
        return torch.cat((values, noise.expand(len(values), -1)), 1)

    def not_finite(self, index: Tensor | np.ndarray) -> RunError:
        """The error that names pairs, by their rows of the training set, with broken log-probs."""
        rows = np.asarray(index.cpu() if isinstance(index, Tensor) else index)
        names = ", ".join(self.pair_ids[rows][:5])
        return RunError(
            f"{len(rows)} pairs of this step have a log-probability that is not finite (NaN or "
            f"infinite): {names}. The weights were not updated. Lower the learning rate, or look "
            "at these pairs."
        )

    def end_step(
        self,
        logs: Mapping[str, float],
        router: Router | None,
        gamma: float | None,
        seconds: float,
        total_steps: int,
    ) -> None:
        """Add the row of the step that `close_step` closed.

        Args:
            logs: the trainer's of this step: learning_rate and grad_norm.
            router: whose calibration is logged.
            gamma: the correction strength of the step; None where the loss has no correction.
            seconds: since the step before, loading included.
            total_steps: of the run.

        Raises:
            RunError: where the gradient was not finite, so that the weights are spoilt now.
        """
        row = self._metrics_row(self._steps[-1], router)
        if gamma is not None:
            row["gamma"] = gamma
        row |= {name: float(logs[name]) for name in ("learning_rate", "grad_norm")}
        row |= {"seconds": seconds, "pairs_per_second": len(self._steps[-1]["margin"]) / seconds}
        self._metrics.append(row)
        self._progress = row["step"] + 1, total_steps
        if not np.isfinite(row["grad_norm"]):
            raise RunError(
                f"The gradient of step {row['step']} is not finite, though all margins are. "
                "Lower the learning rate and go on from the last checkpoint."
            )

    def write_if_due(self) -> None:
        """Write the steps so far every few of them or seconds, and tell status.json.

        For a moment when the device has work to do: the posterior over the steps so far, which
        this step's visits are read with, is computed behind it too.
        """
        self.posterior.read()
        now = time.monotonic()
        if len(self._steps) >= _STEPS_A_FILE or now - self._flushed > _SECONDS_BETWEEN_FILES:
            self.flush()
        due = now - self._status_written > SECONDS_BETWEEN_STATUS
        if due and self._progress and PartialState().is_main_process:
            self._status_written = now
            tell_progress(self.run, *self._progress)

    def _metrics_row(self, visits: dict[str, Any], router: Router | None) -> dict[str, Any]:
        margin = visits["margin"]
        rewards = {
            side: self.beta * (visits[f"policy_{side}"] - visits[f"reference_{side}"]).mean()
            for side in ("chosen", "rejected")
        }
        row = {
            "step": int(visits["step"][0]),
            "epoch": float(visits["epoch"][0]),
            "loss": visits["loss"].mean(),
            "margin_mean": margin.mean(),
            "margin_std": margin.std(),
            # A margin of exactly 0, as at step 0, is neither right nor wrong.
            "accuracy": (margin > 0).mean() + 0.5 * (margin == 0).mean(),
            "reward_chosen": rewards["chosen"],
            "reward_rejected": rewards["rejected"],
            "weight_mean": visits["weight"].mean(),
        }
        row |= {name: visits[name].mean() for name in ("q_clean", "q_flip", "q_tie", "p_flip")}
        row |= {name: visits[name][0] for name in ("noise_rate", "noise_low", "noise_high")}
        if router is not None:
            mean, deviation = (float(x) for x in router.calibration.statistics())
            row |= {
                "ema_mean": mean,
                "ema_std": deviation,
                "floor_bound": float(deviation < router.calibration.sigma_min),
            }
        return {k: v if isinstance(v, int) else float(v) for k, v in row.items()}

    def flush(self) -> None:
        """Write what was collected since the last flush."""
        steps, metrics = self._steps, self._metrics
        self._steps, self._metrics = [], []
        self._flushed = time.monotonic()
        if steps and PartialState().is_main_process:
            self.run.append_visits(
                {name: np.concatenate([s[name] for s in steps]) for name in VISITS_SCHEMA.names}
            )
            self.run.append_metrics(metrics)


def tell_progress(run: Run, done: int, total: int) -> None:
    """Write to status.json how many optimizer steps of the run are done."""
    run.set_status(phase="training", done=done, total=total, step=done, total_steps=total)

"""The record of training: one row for each pair and visit, one row for each optimizer step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor
from torch.distributed.tensor import DTensor

from plc_core.objective import FlipPosterior, ObjectiveOutput, PairLogps, Router, Routing
from plc_core.objective.reduction import counts_over_ranks, gather_over_ranks, objects_over_ranks
from plc_core.progress import SECONDS_BETWEEN_STATUS
from plc_core.runs import Run
from plc_core.runs.alerts import SATURATED, Alerts
from plc_core.runs.visit_files import VISITS_SCHEMA
from plc_core.storage.files import RunError

_VALUES = [*VISITS_SCHEMA.names[3:], "loss", "distinct", "noise_rate", "noise_low", "noise_high"]
_STEPS_A_FILE = 16
_SECONDS_BETWEEN_FILES = 10.0


class HostCopy:
    """An asynchronous copy to the host; reading it waits for this copy only."""

    def __init__(self, tensor: Tensor) -> None:
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        self._copy = whole.detach().to("cpu", non_blocking=whole.is_cuda, copy=True)
        self._there = torch.cuda.Event() if whole.is_cuda else None
        if self._there is not None:
            self._there.record()

    def numpy(self) -> np.ndarray:
        """The tensor's values."""
        if self._there is not None:
            self._there.synchronize()
        values: np.ndarray = self._copy.numpy()
        return values


@dataclass
class _Step:
    """What an optimizer step leaves, on its way from the device."""

    step: int
    epoch: float
    index: HostCopy  # [B], rows of the training set
    values: HostCopy  # [B, V], of _VALUES
    calibration: HostCopy | None  # mean and deviation of the margins' EMA
    sigma_min: float = 0.0
    row: dict[str, float] = field(default_factory=dict)  # of metrics, as far as the host knows it
    grad_norm: HostCopy | None = None


class VisitRecorder:
    """Collects what happened to every pair and writes it to the run folder.

    The micro-batches of a step stay on the device until the step's backward is done: one transfer
    an optimizer step, which is read when the device is at work on the next one, so that it never
    waits for the host. Writes happen on the main process: every few steps or seconds, at
    checkpoints, and when training ends in whatever way.

    A step calls `add` per forward, `close_step` before its update and `end_step` after it;
    `settle` reads the steps that have ended, `write_if_due` and `flush` write them, `keep` does so
    when training fails.

    Args:
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
        # A GPU goes on while the host reads; a CPU has computed what it was asked for.
        self.reads_later = torch.cuda.is_available()
        self._micro_batches: list[tuple[Tensor, Tensor]] = []
        self._finite: list[HostCopy] = []  # of the margins of each micro-batch
        self._closed: _Step | None = None
        self._ended: list[_Step] = []
        self._steps: list[dict[str, Any]] = []
        self._metrics: list[dict[str, Any]] = []
        self._progress: tuple[int, int] | None = None  # steps done, and of the run
        self._status_written = 0.0
        self._alerts = Alerts(run)
        self._flushed = time.monotonic()

    def add(
        self,
        index: Tensor,
        logps: PairLogps,
        out: ObjectiveOutput,
        routing: Routing | None,
        distinct: Tensor,
    ) -> None:
        """Take a micro-batch of visits.

        Args:
            index: [B], rows of the training set.
            logps, out, routing: of the micro-batch; no routing is blank (NaN).
            distinct: [B], whether a pair's responses differ in their tokens.
        """
        nothing = torch.full_like(out.margin, torch.nan)
        routed = routing if routing is not None else Routing(*[nothing] * 6)
        columns = [out.margin, *routed, *(x.detach() for x in logps[:4])]
        # p_flip is of the whole step: close_step puts it here.
        columns += [nothing, out.loss.detach(), distinct]
        self._micro_batches.append((index, torch.stack([c.to(torch.float64) for c in columns], 1)))
        # Known once this forward is done, while the device is at its backward.
        # The margin alone: through the EMA, one broken margin breaks the losses of all the others.
        self._finite.append(HostCopy(out.margin.isfinite()))

    def close_step(self, step: int, epoch: float, router: Router | None) -> None:
        """Take the step's visits together, once its backward is launched and before its update.

        `router` is the one whose calibration is logged.

        Raises:
            RunError: naming the pairs, where a log-prob or margin of some rank is not finite.
        """
        places = torch.cat([i for i, _ in self._micro_batches])
        values = torch.cat([v for _, v in self._micro_batches])
        broken = ~np.concatenate([finite.numpy() for finite in self._finite])
        self._micro_batches, self._finite = [], []
        if any(counts_over_ranks(int(broken.sum()))):
            rows = objects_over_ranks(places.cpu().numpy()[broken])
            raise self.not_finite(np.concatenate(rows))
        table = self._with_posterior(places, values, before_any_update=step == 0)
        self._closed = _Step(step, epoch, HostCopy(places), HostCopy(table), None)
        if router is not None:
            self._closed.calibration = HostCopy(torch.stack(router.calibration.statistics()))
            self._closed.sigma_min = router.calibration.sigma_min

    def _with_posterior(self, places: Tensor, values: Tensor, before_any_update: bool) -> Tensor:
        """Values [B, V] with p_flip and the noise rate, from the steps strictly before this one."""
        # Pairs with the same tokens on both sides are no evidence, and none is read of them.
        distinct = values[:, _VALUES.index("distinct")] > 0
        margins = torch.where(distinct, values[:, _VALUES.index("margin")], torch.nan)
        values[:, _VALUES.index("p_flip")] = self.posterior(margins)
        noise = torch.stack(self.posterior.estimate(values.device))
        # In the order of the training set, whichever rank and micro-batch had which pair.
        everyone, _ = gather_over_ranks(torch.stack((places.to(margins.dtype), margins), 1))
        self.posterior.observe(everyone[everyone[:, 0].argsort(), 1], before_any_update)
        return torch.cat((values, noise.expand(len(values), -1)), 1)

    def not_finite(self, index: Tensor | np.ndarray) -> RunError:
        """The error that names pairs, by their rows of the training set, with broken log-probs."""
        rows = np.asarray(index.cpu() if isinstance(index, Tensor) else index)
        names = ", ".join(self.pair_ids[rows][:5])
        return RunError(
            f"{len(rows)} pairs of this step have a log-probability that is not finite (NaN or "
            f"infinite): {names}. The weights were not updated. Look at these pairs, or train "
            "under another name with a lower learning rate."
        )

    def end_step(
        self,
        learning_rate: float,
        grad_norm: Tensor | float | None,
        gamma: float | None,
        seconds: float,
        total_steps: int,
    ) -> None:
        """Complete the step that `close_step` closed, after its update.

        Args:
            grad_norm: of its gradient, before clipping; None where it is not known.
            gamma: the correction strength of the step; None where the loss has no correction.
            seconds: since the step before, loading included.

        Raises:
            RunError: as `settle`, on a CPU, where the step is read at once.
        """
        step, self._closed = self._closed, None
        assert step is not None
        step.row = {"learning_rate": learning_rate, "seconds": seconds}
        if gamma is not None:
            step.row["gamma"] = gamma
        if grad_norm is not None:
            step.grad_norm = HostCopy(torch.as_tensor(grad_norm))
        self._ended.append(step)
        self._progress = step.step + 1, total_steps
        if not self.reads_later:
            self.settle()

    def settle(self) -> None:
        """Read the steps that have ended from the device, of all ranks; collective.

        Raises:
            RunError: where the gradient of one was not finite, so that the weights are spoilt.
        """
        while self._ended:
            step = self._ended[0]
            parts = objects_over_ranks((step.index.numpy(), step.values.numpy()))
            index = np.concatenate([i for i, _ in parts])
            values = np.concatenate([v for _, v in parts])
            visits = {
                "pair_id": self.pair_ids[index],
                "step": np.full(len(index), step.step),
                "epoch": np.full(len(index), step.epoch),
            }
            visits |= dict(zip(_VALUES, values.T, strict=True))
            row = self._metrics_row(visits, step)
            # All at once: who is interrupted here has the step whole or not at all.
            self._ended, self._steps, self._metrics = (
                self._ended[1:], [*self._steps, visits], [*self._metrics, row]
            )  # fmt: skip
            if not np.isfinite(row.get("grad_norm", 0.0)):
                raise RunError(
                    f"The gradient of step {row['step']} is not finite, though all margins are. "
                    "Lower the learning rate, and train under another name."
                )

    def write_if_due(self) -> None:
        """Read the steps so far, write them every few of them or seconds, and tell status.json.

        Call it while the device is busy: the posterior over the earlier steps, which gives this
        step's p_flip, is computed meanwhile.
        """
        self.posterior.read()
        self.settle()
        now = time.monotonic()
        if len(self._steps) >= _STEPS_A_FILE or now - self._flushed > _SECONDS_BETWEEN_FILES:
            self._write()
        due = now - self._status_written > SECONDS_BETWEEN_STATUS
        if due and self._progress and PartialState().is_main_process:
            self._status_written = now
            tell_progress(self.run, *self._progress)

    def _metrics_row(self, visits: dict[str, Any], step: _Step) -> dict[str, Any]:
        distinct = visits["distinct"] > 0
        margin = visits["margin"][distinct]
        rewards = {
            side: self.beta * (visits[f"policy_{side}"] - visits[f"reference_{side}"]).mean()
            for side in ("chosen", "rejected")
        }
        row = {
            "step": step.step,
            "epoch": step.epoch,
            "loss": visits["loss"].mean(),
            # Of pairs whose responses differ; a margin of exactly 0, as at step 0, is neither right
            # nor wrong.
            "margin_mean": _mean(margin),
            "margin_std": margin.std() if len(margin) else np.nan,
            "accuracy": _mean((margin > 0) + 0.5 * (margin == 0)),
            "reward_chosen": rewards["chosen"],
            "reward_rejected": rewards["rejected"],
            "saturated": _mean(np.abs(margin) > SATURATED),
            "weight_mean": _mean(visits["weight"][distinct]),
        }
        routed = ("q_clean", "q_flip", "q_tie", "p_flip")
        row |= {name: _mean(visits[name][distinct]) for name in routed}
        row |= {name: visits[name][0] for name in ("noise_rate", "noise_low", "noise_high")}
        if step.calibration is not None:
            mean, deviation = step.calibration.numpy()
            row |= {
                "ema_mean": mean,
                "ema_std": deviation,
                "floor_bound": float(deviation < step.sigma_min),
            }
        row |= step.row | {"pairs_per_second": len(distinct) / step.row["seconds"]}
        if step.grad_norm is not None:
            row["grad_norm"] = step.grad_norm.numpy()
        return {k: v if isinstance(v, int) else float(v) for k, v in row.items()}

    def flush(self) -> None:
        """Write what was collected since the last flush; collective.

        Raises:
            RunError: as `settle`, after everything was written.
        """
        try:
            self.settle()
        finally:
            self._write()

    def keep(self) -> None:
        """Write what was collected when this rank fails, perhaps alone; mask no error by that."""
        if PartialState().num_processes == 1:
            with contextlib.suppress(Exception):
                self.settle()
        self._write()

    def _write(self) -> None:
        steps, metrics = self._steps, self._metrics
        self._steps, self._metrics = [], []
        self._flushed = time.monotonic()
        if steps and PartialState().is_main_process:
            self.run.append_visits(
                {name: np.concatenate([s[name] for s in steps]) for name in VISITS_SCHEMA.names}
            )
            self.run.append_metrics(metrics)
            self._alerts.look(self._progress)


def tell_progress(run: Run, done: int, total: int) -> None:
    """Write to status.json how many optimizer steps of the run are done."""
    run.set_status(phase="training", done=done, total=total, step=done, total_steps=total)


def _mean(values: np.ndarray) -> float:
    """The mean of some values; NaN of none, without numpy's warning."""
    return float(values.mean()) if len(values) else float("nan")

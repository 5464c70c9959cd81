"""PLC-DPO, or any objective of this package, inside a script that uses TRL's DPOTrainer.

Two lines change. Instead of `from trl import DPOTrainer`:

    from plc_core.engine.trl_adapter import ObjectiveDPOTrainer as DPOTrainer

and in the call, `DPOTrainer(model=…, args=…, …)` gets its objective:

    DPOTrainer(objective=build_objective("plc", beta=0.01), model=…, args=…, …)
"""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import trl
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel
from trl import DPOConfig, DPOTrainer

from plc_core.engine.objective_trainer import CarriesObjective
from plc_core.engine.trl_record import begun, pairs_table
from plc_core.engine.visits import VisitRecorder, tell_progress
from plc_core.objective import FlipPosterior, Objective, PairLogps, Router, Routing

TESTED = ("1.16",)
"""Versions of TRL that the adapter is tested with; its trainer has no hook for a loss."""

# TRL's own values of what this trainer would ignore.
_PLAIN = {
    "loss_type": ["sigmoid"],
    "loss_weights": None,
    "label_smoothing": 0.0,
    "f_divergence_type": "reverse_kl",
    "ld_alpha": None,
    "use_weighting": False,
    "sync_ref_model": False,
}
_BETA = 0.1

INDEX = "plc_index"
"""A column of the training set and of its batches: the pair's row."""

if not trl.__version__.startswith(tuple(f"{version}." for version in TESTED)):
    raise ImportError(
        f"plc_core.engine.trl_adapter is tested with TRL {', '.join(TESTED)}; {trl.__version__} is "
        "installed. Install one of those versions."
    )


class ObjectiveDPOTrainer(CarriesObjective, DPOTrainer):
    """TRL's DPOTrainer with its loss replaced by an objective.

    Data, tokens, log-probs and metrics are TRL's. Reference log-probs are computed before training
    (`precompute_ref_log_probs` is switched on). The means of q, confidence and weight, and gamma
    where the objective corrects, are logged under `routing/`, from a shadow router where it has
    none. Each training leaves its pairs, visits and metrics in a run folder,
    `<output_dir>/runs/training-<number>`, for `open_run` and the inspector (`--runs
    <output_dir>/runs`). Calibration follows the optimizer step; under accumulation it scores with
    the previous step's EMA. As in TRL, a smaller last micro-batch weighs as much as a whole one.

    Args:
        objective: of `build_objective`; its beta is the one that counts.
        args: TRL's own. Options that change TRL's loss are refused, as they would be ignored.
        others: as in `DPOTrainer`.
    """

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        ref_model: PreTrainedModel | None = None,
        args: DPOConfig | None = None,
        *,
        objective: Objective,
        **others: Any,
    ) -> None:
        if not isinstance(objective, Objective):
            raise ValueError(f"objective is one of build_objective, not {objective!r}.")
        args = copy.copy(args) if args is not None else DPOConfig(output_dir="plc-dpo")
        _refuse_ignored(args, objective)
        args.precompute_ref_log_probs = True
        args.beta = objective.beta  # of TRL's reward metrics
        super().__init__(model, ref_model, args, **others)
        shadow = None if objective.router is not None else Router()
        self.carry(objective, shadow, posterior=FlipPosterior())
        pairs: Any = self.train_dataset
        if INDEX in pairs.column_names:
            raise ValueError(f"The training set has a column {INDEX!r}; give it another name.")
        self.train_dataset = pairs.add_column(INDEX, range(len(pairs)))
        self.data_collator = _with_index(self.data_collator)
        self._routed: dict[str, dict[str, list[Tensor]]] = {
            "train": defaultdict(list),
            "eval": defaultdict(list),
        }

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        columns: Any = self._signature_columns
        if INDEX not in columns:
            columns.append(INDEX)

    @contextlib.contextmanager
    def recording(self, done: int) -> Iterator[None]:
        """Leave a run folder below `output_dir`, whatever becomes of the training."""
        tokens: Any = self.train_dataset
        pairs = pairs_table(tokens.remove_columns(INDEX), self._tokenizer)
        about = {
            "objective": type(self.objective).__name__,
            "beta": self.objective.beta,
            "calibration_order": self.router.calibration_order if self.router else None,
        }
        run = begun(Path(str(self.args.output_dir)), done, pairs, about)
        ids = pairs["pair_id"].to_pylist()
        self.recorder = VisitRecorder(run, ids, self.objective.beta, self.posterior)
        with run.running("training") if self.is_world_process_zero() else nullcontext():
            try:
                yield
            except BaseException:
                self.recorder.keep()
                raise
            self.recorder.flush()
            if self.is_world_process_zero():
                tell_progress(run, self.state.global_step, self.state.max_steps)
                run.update_info(trained_steps=self.state.global_step)

    def _compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool
    ) -> Any:
        index = inputs.pop(INDEX, None)
        # TRL's own loss is computed and dropped: it leaves its metrics, and the log-probs pass by.
        seen: list[Any] = []

        def watched(**kwargs: Any) -> Any:
            seen.append(model(**kwargs))
            return seen[-1]

        theirs = super()._compute_loss(watched, inputs, return_outputs)
        mask = inputs["completion_mask"][:, 1:]
        # Prompt-learning adapters put virtual tokens in front; TRL sets what is no response to 0.
        policy = seen[0].log_probs[:, -mask.shape[1] :].sum(1)
        chosen, rejected = policy.chunk(2)
        lengths = mask.sum(1)
        logps = PairLogps(
            chosen,
            rejected,
            inputs["ref_chosen_logps"],
            inputs["ref_rejected_logps"],
            *lengths.chunk(2),
        )
        distinct = _distinct(inputs)
        out, routing = self.score(logps, index, distinct, model.training)
        self._note(routing)
        loss = out.loss.mean()
        if self.aux_loss_enabled:
            # Mixtures of experts: their balancing loss is no part of the preference loss.
            loss = loss + self.router_aux_loss_coef * seen[0].aux_loss
        return (loss, theirs[1]) if return_outputs else loss

    def _note(self, routing: Routing | None) -> None:
        if routing is None:
            return
        routed = self._routed[self._mode()]
        means = {"q_clean": routing.clean, "q_flip": routing.flip, "q_tie": routing.tie}
        means |= {"confidence": routing.confidence, "weight": routing.weight}
        for name, values in means.items():
            # Kept on the device until they are logged: no synchronisation a micro-batch.
            routed[f"routing/{name}"].append(values.nanmean())
        if self.objective.router is not None:
            progress = self.state.global_step / max(self.state.max_steps, 1)
            strength = self.objective.router.strength(min(progress, 1.0))
            routed["routing/gamma"].append(torch.tensor(strength))

    def _mode(self) -> str:
        return "train" if self.model is not None and self.model.training else "eval"

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in TRL, with the mean routing since the last log."""
        mode = self._mode()
        prefix = "eval_" if mode == "eval" else ""
        for name, values in self._routed[mode].items():
            logs[prefix + name] = float(torch.stack(values).nanmean())
        self._routed[mode].clear()
        super().log(logs, start_time)


def _distinct(inputs: dict[str, Tensor]) -> Tensor:
    """[B] whether the tokens of a pair's responses differ."""
    mask = inputs["completion_mask"].bool()
    chosen, rejected = torch.where(mask, inputs["input_ids"], -1).chunk(2)
    return (chosen != rejected).any(1)


def _refuse_ignored(args: DPOConfig, objective: Objective) -> None:
    for name, plain in _PLAIN.items():
        if getattr(args, name) != plain:
            raise ValueError(
                f"{name}={getattr(args, name)!r} changes TRL's own loss, which "
                f"{type(objective).__name__} replaces; set it on the objective, or leave it out."
            )
    if args.beta not in (_BETA, objective.beta):
        raise ValueError(
            f"args.beta is {args.beta} and the objective's beta {objective.beta}: they must agree."
        )


def _with_index(collate: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """The collator with `INDEX`, which evaluation's rows do not have."""

    def collated(rows: Sequence[Any]) -> dict[str, Any]:
        batch = collate(rows)
        if INDEX in rows[0]:
            batch[INDEX] = torch.tensor([row[INDEX] for row in rows])
        return batch

    return collated

"""PLC-DPO, or any objective of this package, inside a script that uses TRL's DPOTrainer.

Two lines change. Instead of `from trl import DPOTrainer`:

    from plc_core.engine.trl_adapter import ObjectiveDPOTrainer as DPOTrainer

and in the call, `DPOTrainer(model=…, args=…, …)` gets its objective:

    DPOTrainer(objective=build_objective("plc", beta=0.01), model=…, args=…, …)
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch
import trl
from peft import PeftModel
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import DPOConfig, DPOTrainer

from plc_core.engine.objective_state import CarriesObjective
from plc_core.files import RunError
from plc_core.objective import NonFiniteError, Objective, PairLogps, Router, Routing

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

if not trl.__version__.startswith(tuple(f"{version}." for version in TESTED)):
    raise ImportError(
        f"plc_core.engine.trl_adapter is tested with TRL {', '.join(TESTED)}; {trl.__version__} is "
        "installed. Install one of those versions."
    )


class ObjectiveDPOTrainer(CarriesObjective, DPOTrainer):
    """TRL's DPOTrainer with its loss replaced by an objective.

    Data, tokens, log-probs and metrics are TRL's. Reference log-probs are computed before training
    (`precompute_ref_log_probs` is switched on). Mean routing weights and confidence are logged
    under `routing/`, from a shadow router where the objective has none. Calibration follows the
    optimizer step; under accumulation it scores with the previous step's EMA. As in TRL, a smaller
    last micro-batch weighs as much as a whole one.

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
        self.carry(objective, None if objective.router is not None else Router())
        self._finite: list[Tensor] = []
        self.add_callback(_LooksOnceAStep(self))
        self._routed: dict[str, dict[str, list[Tensor]]] = {
            "train": defaultdict(list),
            "eval": defaultdict(list),
        }

    def _compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool
    ) -> Any:
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
        try:
            out, routing = self.score(logps, model.training, _distinct(inputs))
        except NonFiniteError as error:
            where = f"step {self.state.global_step}, micro-batch {self._micro_batch}"
            raise NonFiniteError(error.positions, where) from None
        if model.training:
            self._finite.append(out.margin.isfinite().all())
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
        for name, values in (means | {"confidence": routing.confidence}).items():
            # Kept on the device until they are logged: no synchronisation a micro-batch.
            routed[f"routing/{name}"].append(values.nanmean())

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


class _LooksOnceAStep(TrainerCallback):
    """Stops at a log-prob that is not finite: transformers would log its loss as 0 and go on."""

    def __init__(self, trainer: ObjectiveDPOTrainer) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        flags, self.trainer._finite = self.trainer._finite, []
        broken = [place for place, finite in enumerate(torch.stack(flags).tolist()) if not finite]
        if broken:
            raise RunError(
                f"At step {state.global_step}, micro-batches {broken} have a log-probability that "
                "is not finite (NaN or infinite). The weights were not updated. Lower the learning "
                "rate, or look at these pairs."
            )

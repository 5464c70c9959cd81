"""Every parameter of a training run and of the stages before it, validated before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from plc_core.objective.build import OBJECTIVES
from plc_core.storage.paths import project_path

if TYPE_CHECKING:
    ObjectiveName: TypeAlias = str
else:
    ObjectiveName = Literal[tuple(OBJECTIVES)]

Flips: TypeAlias = Literal["random", "lowest-margin", "largest-gap", "smallest-gap"]


FRESH_WORLD = "world-base"
"""The name of a model of the embedded world's shape with fresh weights."""


WORLD_MODELS = ("world", FRESH_WORLD)
OWN_MODEL = "smollm2-135m"
"""The model of own pairs where none is named: a small real one that needs no hub."""

SUITS_OWN_PAIRS: dict[str, Any] = {
    "beta": 0.1,
    "learning_rate": 1e-4,
    "lora_rank": 16,
    "batch_pairs": 16,
    "pairs_per_forward": 4,
    "row_tokens": 1024,
    "save_steps": 20,
    "eval_prompts": 0,
}
"""Parameters of `TrainConfig` that follow the pairs where they are None, and what suits own pairs
and a real model on a CPU. For the world, data or model, that is the parameter's default. Who gives
tokens_per_forward has a GPU: steps are of 64 pairs then, and rows as long as a forward pass."""


class Parameters(BaseModel):
    """What holds for all parameters: no unknown name, no wrong type, no change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _numbers_in_exponent_form(cls, values: Any) -> Any:
        # YAML reads 1e-5, without a dot, as text; a strict float would refuse it.
        if not isinstance(values, dict):
            return values
        floats = [n for n, f in cls.model_fields.items() if f.annotation is float]
        return values | {n: as_number(values[n]) for n in floats if n in values}

    @property
    def runs_folder(self) -> Path:
        """Where run folders lie, of parameters that say it as `runs_dir`."""
        return project_path(self.runs_dir)  # type: ignore[attr-defined]


class DataConfig(Parameters):
    """Which pairs are read and how, and the model whose tokens they become."""

    model: str = "world"  # "world", a local folder, or a name on the hub
    data: str = Field("world", min_length=1)  # "world", a public dataset, or a file or folder
    data_files: str | None = None  # a local copy of the public dataset
    data_revision: str | None = None  # of the public dataset, instead of the pinned one
    data_split: str | None = "train"  # None keeps all
    data_columns: dict[str, str] = Field(default_factory=dict)  # as {"prompt": "input"}
    data_actions: dict[str, str] = Field(default_factory=dict)  # as {"prefix": "drop"}
    data_bounds: dict[str, int | float] = Field(default_factory=dict)  # as {"row_mb": 64}
    evaluation_prompts: str | None = None  # a file of prompts to find among the training prompts
    num_pairs: int | None = Field(None, gt=0)  # first rows to read; None: all; 6144 of the world
    max_length: int = Field(1024, ge=4, le=1_000_000)  # tokens of prompt and longer response
    seed: int = Field(0, ge=0, lt=2**32)  # pairs, corruption, order and adapters

    @model_validator(mode="after")
    def _known_actions(self) -> DataConfig:
        if self.data_actions:
            # Here alone: a run without changes need not load the data room to be checked.
            from plc_core.data.rules import chosen_actions

            chosen_actions(self.data_actions)
        if self.data_bounds:
            from plc_core.data.bounds import Bounds

            Bounds.of(self.data_bounds)
        return self


class TrainConfig(DataConfig):
    """The parameters of `notebooks/01_train.ipynb`; unknown names and wrong types are refused.

    Defaults train PLC-DPO on the embedded world. What the notebook leaves at None follows the pairs
    (`SUITS_OWN_PAIRS`). The paper's training surface is beta 0.01, learning_rate 1e-5, lora_rank
    16, lora_alpha 16, batch_pairs 64, epochs 1.
    """

    name: str  # name of the run, and of its folder
    runs_dir: str = "runs"  # where run folders lie; relative to the checkout
    objective: ObjectiveName = "plc"
    objective_options: dict[str, Any] = Field(default_factory=dict)  # as {"epsilon": 0.1}
    recipe: Literal["conservative", "balanced", "aggressive"] = "aggressive"
    beta: float = Field(0.2, gt=0)  # scale of the margin
    prior: list[float] = Field([0.80, 0.08, 0.12], min_length=3, max_length=3)  # clean, flip, tie
    pair_priors: bool = False  # each pair's own, from p_flip and p_tie of its row, as audits tell
    schedule: Literal["linear", "cosine", "constant"] = "linear"  # gamma after warm-up
    calibration_order: Literal["auto", "update-first", "score-first"] = "auto"
    lora_rank: int = Field(0, ge=0, le=4096)  # 0 trains all weights
    lora_alpha: int = Field(16, gt=0)
    precision: Literal["fp32", "bf16"] = "fp32"
    warm_share: float = Field(0.0, ge=0, le=1)  # pairs left clean and visited first
    annotator: bool = False  # labels of one simulated annotator, who errs and is biased
    tie_rate: float = Field(0.0, ge=0, le=1)  # share of pairs to replace by exact ties
    tie_pool: str | None = None  # a file of exact ties or of scored answers, or ultrafeedback-ties
    tie_pool_files: str | None = None  # a local copy of ultrafeedback-ties
    held_out: int = Field(0, ge=0)  # pairs kept out of training, by whole prompts; the paper: 8000
    flip_rate: float = Field(0.0, ge=0, le=1)  # share of labels to reverse
    flips: Flips = "random"  # which pairs are reversed
    margins_run: str | None = None  # the run on clean labels whose policy ranks for lowest-margin
    learning_rate: float = Field(5e-4, gt=0)  # its peak
    learning_rate_warmup: float = Field(0.1, ge=0, lt=1)  # share of the steps in which it rises
    epochs: float = Field(1.0, gt=0, le=1000)
    batch_pairs: int = Field(64, gt=0, le=1_000_000)  # an optimizer step, over all processes
    pairs_per_forward: int = Field(64, gt=0)  # at most
    tokens_per_forward: int = Field(0, ge=0)  # at most; 0 leaves it to pairs_per_forward
    row_tokens: int = Field(128, gt=0)  # length of a packed row
    gradient_checkpointing: bool = False  # less memory, a third more computing
    compile: bool = False  # the decoder's layers; takes a minute or two, for a GPU
    save_steps: int = Field(0, ge=0)  # steps between checkpoints; 0 keeps the last one only
    resume: bool = False  # go on from the last checkpoint of the run of this name
    eval_prompts: int = Field(600, ge=0)  # held-out prompts, of the world only

    @model_validator(mode="before")
    @classmethod
    def _what_suits_the_pairs(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = dict(values)
        own = values.get("data", "world") != "world"
        if "model" in values and values["model"] is None:
            values["model"] = OWN_MODEL if own else "world"
        own &= values.get("model", "world") not in WORLD_MODELS
        defaults = {name: cls.model_fields[name].default for name in SUITS_OWN_PAIRS}
        suits = SUITS_OWN_PAIRS if own else defaults
        if own and (tokens := values.get("tokens_per_forward")):
            large = {name: defaults[name] for name in ("batch_pairs", "pairs_per_forward")}
            suits = suits | large | {"row_tokens": tokens}
        for name, value in suits.items():
            if name in values and values[name] is None:
                values[name] = value
        return values

    @model_validator(mode="before")
    @classmethod
    def _numbers_in_lists(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if isinstance(values.get("prior"), (list, tuple)):
            values["prior"] = [as_number(p) for p in values["prior"]]
        if isinstance(options := values.get("objective_options"), dict):
            numbers = {n: as_number(v) if isinstance(v, str) else v for n, v in options.items()}
            values["objective_options"] = numbers
        return values

    @property
    def autocast(self) -> bool:
        """Whether forwards run in bfloat16 by autocast."""
        return self.precision == "bf16"

    @property
    def weights_dtype(self) -> str:
        """How weights are held: those that are trained in fp32, where small updates survive."""
        return "bf16" if self.autocast and self.lora_rank else "fp32"

    @model_validator(mode="after")
    def _consistent(self) -> TrainConfig:
        routing = {"recipe", "prior", "schedule", "calibration_order"}
        if both := routing & set(self.objective_options):
            raise ValueError(f"{', '.join(sorted(both))} is a parameter of its own, not an option")
        if self.objective_options:
            # Here alone: a run without options need not load torch to know that it can be meant.
            from plc_core.objective import build_objective

            build_objective(self.objective, beta=self.beta, **self.objective_options)
        if (self.flips == "lowest-margin") != (self.margins_run is not None):
            raise ValueError("flips lowest-margin and margins_run need each other")
        if self.tie_rate and self.tie_pool is None:
            # Here alone: a run without ties need not load the data room to be checked.
            from plc_core.data.public import has_ties

            if not has_ties(self.data):
                raise ValueError(
                    "tie_rate needs a tie_pool: a file of pairs with equal scores or of several "
                    "scored answers a prompt, or ultrafeedback-ties"
                )
        if self.pair_priors and (self.flip_rate or self.tie_rate or self.annotator):
            raise ValueError(
                "pair_priors are of the labels as the data have them: with flip_rate, tie_rate or "
                "annotator they would be of other labels"
            )
        if abs(sum(self.prior) - 1) > 1e-6 or min(self.prior) < 0:
            raise ValueError(f"prior {self.prior} must be three shares that sum to 1")
        return self


class StageConfig(Parameters):
    """What the supervised stage and the reward model have in common."""

    name: str  # name of the run, and of its folder
    runs_dir: str = "runs"  # where run folders lie; relative to the checkout
    data: str = Field("world", min_length=1)  # "world", a local file or folder, or a hub dataset
    learning_rate: float = Field(3e-3, gt=0)  # peak, with cosine decay and 10 % warm-up
    adam_beta2: float = Field(0.98, gt=0, lt=1)  # decay of squared gradients; short runs want less
    epochs: float = Field(1.0, gt=0, le=1000)
    batch_rows: int = Field(16, gt=0)  # conversations or pairs an optimizer step
    rows_per_forward: int = Field(16, gt=0)  # at most; divides batch_rows
    max_length: int = Field(1024, ge=4, le=1_000_000)  # tokens
    lora_rank: int = Field(0, ge=0, le=4096)  # 0 trains all weights; adapters are merged at the end
    lora_alpha: int = Field(16, gt=0)
    precision: Literal["fp32", "bf16"] = "fp32"
    gradient_checkpointing: bool = False
    held_out_share: float = Field(0.02, ge=0, lt=1)  # of the rows, by a hash of their prompt
    seed: int = Field(0, ge=0, lt=2**32)  # data of the world, order and weights
    save_steps: int = Field(0, ge=0)  # steps between checkpoints; 0 keeps none
    resume: bool = False  # go on from the last checkpoint of the run of this name

    @model_validator(mode="after")
    def _divisible(self) -> StageConfig:
        if self.batch_rows % self.rows_per_forward:
            raise ValueError(
                f"rows_per_forward ({self.rows_per_forward}) must divide batch_rows "
                f"({self.batch_rows})"
            )
        return self


class SftConfig(StageConfig):
    """The parameters of `notebooks/00_sft.ipynb`; real models want a rate near 2e-5."""

    model: str = FRESH_WORLD  # "world-base", a local folder, or a name on the hub
    chat_template: str | None = None  # a file in Jinja, for a base model that has no template
    data_split: str = "train"  # of files that name theirs, or of the hub, as train_sft
    data_revision: str | None = None  # of the hub dataset
    num_rows: int | None = Field(None, gt=0)  # first rows to read; None: all; 19200 of the world
    eval_prompts: int = Field(200, ge=0)  # of the world, to answer greedily at the end


def as_number(value: Any) -> Any:
    """A whole number or text that spells a number as a float; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return value
    try:
        return value if "_" in str(value) else float(value)
    except (ValueError, OverflowError):
        return value

"""Every parameter of a training run, validated before anything runs."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

# The keys of plc_core.objective.OBJECTIVES, spelled out here because torch is not loaded.
Objective: TypeAlias = Literal[
    "dpo",
    "cdpo",
    "rdpo-robust",
    "rdpo-length",
    "kto-pair",
    "rso",
    "gamma-po",
    "dr-dpo",
    "ropo",
    "re-po",
    "ipo",
    "simpo",
    "dpo-ln",
    "plc",
]

Flips: TypeAlias = Literal["random", "lowest-margin", "largest-gap", "smallest-gap"]


class DataConfig(BaseModel):
    """Which pairs are read and how, and the model whose tokens they become."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    model: str = "world"  # "world", a local folder, or a name on the hub
    data: str = Field(
        "world", min_length=1
    )  # "world", a public dataset by name, or a file or folder of pairs
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

    Defaults train PLC-DPO on the embedded world. The paper's training surface is beta 0.01,
    learning_rate 1e-5, lora_rank 16, lora_alpha 16, batch_pairs 64, epochs 1.
    """

    name: str  # name of the run, and of its folder
    runs_dir: str = "runs"  # where run folders lie; relative to the checkout
    objective: Objective = "plc"
    objective_options: dict[str, Any] = Field(default_factory=dict)  # as {"epsilon": 0.1}
    recipe: Literal["conservative", "balanced", "aggressive"] = "aggressive"
    beta: float = Field(0.2, gt=0)  # scale of the margin
    prior: list[float] = Field([0.80, 0.08, 0.12], min_length=3, max_length=3)  # clean, flip, tie
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
    batch_pairs: int = Field(
        64, gt=0, le=1_000_000
    )  # pairs an optimizer step, all processes together
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
    def _numbers_in_exponent_form(cls, values: Any) -> Any:
        # YAML reads 1e-5, without a dot, as text; a strict float would refuse it.
        if isinstance(values, dict):
            floats = [n for n, f in cls.model_fields.items() if f.annotation is float]
            changed = {n: as_number(values[n]) for n in floats if n in values}
            if isinstance(values.get("prior"), (list, tuple)):
                changed["prior"] = [as_number(p) for p in values["prior"]]
            options = values.get("objective_options")
            if isinstance(options, dict):
                numbers = {n: as_number(v) if isinstance(v, str) else v for n, v in options.items()}
                changed["objective_options"] = numbers
            return values | changed
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
        if self.tie_rate and self.data != "world" and self.tie_pool is None:
            # Here alone: a run without ties need not load the data room to be checked.
            from plc_core.data import DATASETS

            if self.data not in DATASETS or DATASETS[self.data].tie_pool is None:
                raise ValueError(
                    "tie_rate needs a tie_pool: a file of pairs with equal scores or of several "
                    "scored answers a prompt, or ultrafeedback-ties"
                )
        if abs(sum(self.prior) - 1) > 1e-6 or min(self.prior) < 0:
            raise ValueError(f"prior {self.prior} must be three shares that sum to 1")
        return self


def as_number(value: Any) -> Any:
    """A whole number or text that spells a number as a float; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return value
    try:
        return value if "_" in str(value) else float(value)
    except (ValueError, OverflowError):
        return value

"""What training costs: this engine's PLC-DPO and DPO beside TRL's DPOTrainer, on the same pairs."""

from __future__ import annotations

import copy
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import pandas as pd
import pyarrow as pa
import torch
from datasets import Dataset, disable_progress_bars
from pydantic import Field, model_validator

from notebooks.overhead.arithmetic import matrix_rate, needed_flops
from notebooks.overhead.benchmark import (
    Timing,
    random_pairs,
    random_qwen,
    time_engine,
    time_trl,
    word_tokenizer,
)
from notebooks.overhead.table import DPO, PLC, REFERENCE
from plc_core.engine.config import Parameters, TrainConfig
from plc_core.engine.forward.packing import PairCollator, StepCollator, pair_sizes
from plc_core.engine.models.adapters import add_lora
from plc_core.engine.models.load import compile_layers, load_policy
from plc_core.engine.reference import with_reference
from plc_core.engine.tokens.tokenized import tokenize_pairs
from plc_core.engine.training_pairs import training_pairs
from plc_core.parameters import checked
from plc_core.progress import Progress
from plc_core.runs import Run, create_run
from plc_core.runs.provenance import provenance
from plc_core.storage.files import write_table

_TRL_ON_A_CPU: list[dict[str, Any]] = [
    {"pairs_per_forward": 8},
    {"pairs_per_forward": 8, "gradient_checkpointing": False},
    {"pairs_per_forward": 32, "gradient_checkpointing": False},
    {"pairs_per_forward": 8, "gradient_checkpointing": False, "precompute_ref_log_probs": True},
]
_TRL_ON_A_GPU: list[dict[str, Any]] = [
    {"pairs_per_forward": 8},
    {"pairs_per_forward": 8, "gradient_checkpointing": False},
    *(
        {"pairs_per_forward": n, "gradient_checkpointing": False, "precompute_ref_log_probs": True}
        for n in (8, 16, 32)
    ),
]
_LIGER = {"use_liger_kernel": True}
"""TRL's option for fused kernels of another package; with it, settings without checkpointing are
tried once more."""
_GPU_TOKENS = 9216
"""Tokens of a forward that fit 80 GB at Qwen2.5-1.5B's shape without checkpointing."""


class OverheadConfig(Parameters):
    """The parameters of `notebooks/11_overhead.ipynb`."""

    name: str  # name of the report's folder
    runs_dir: str = "runs"
    model: Literal["auto", "world", "qwen2.5-1.5b"] = "auto"  # auto: the shape on a GPU
    lora_rank: int = Field(16, ge=0, le=4096)  # 0 trains all weights
    batch_pairs: int = Field(64, gt=0)  # pairs an optimizer step
    max_length: int = Field(1024, ge=4)  # tokens of prompt and longer response
    tokens_per_forward: int = Field(0, ge=0)  # of this engine; 0: 9216 on a GPU, no limit on a CPU
    trl_settings: list[dict[str, Any]] = Field(default_factory=list)  # of DPOConfig; empty: some
    steps: int = Field(6, gt=0)  # timed steps of a round
    warm_up: int = Field(2, gt=0)  # steps before them
    rounds: int = Field(3, gt=0)  # each takes all in turn
    seed: int = Field(0, ge=0, lt=2**32)

    @model_validator(mode="after")
    def _trl_can_split(self) -> OverheadConfig:
        for setting in self.trl_settings:
            pairs = setting.get("pairs_per_forward")
            if not isinstance(pairs, int) or pairs < 1 or self.batch_pairs % pairs:
                sentence = "each of trl_settings needs pairs_per_forward, which divides batch_pairs"
                raise ValueError(sentence)
        return self


class Work(NamedTuple):
    """What all of them train."""

    make: Callable[[], Any]  # a fresh copy of the model, in their precision
    pairs: Dataset
    on_gpu: bool

    @property
    def device_name(self) -> str:
        """The GPU's, or the number of threads of a CPU."""
        if self.on_gpu:
            return torch.cuda.get_device_name()
        return f"a CPU, {torch.get_num_threads()} threads"

    @property
    def tokens_a_pair(self) -> float:
        """Of the prompt once and both responses, padding aside."""
        return float(pair_sizes(self.pairs).mean())


def open_overhead(config: OverheadConfig) -> Run:
    """The report's own folder; an older one of this name is replaced."""
    info = {"kind": "analysis", "config": config.model_dump(), **provenance()}
    return create_run(config.runs_folder, config.name, info)


def prepare_work(config: OverheadConfig, run: Run) -> Work:
    """The embedded world's model and pairs, or Qwen2.5-1.5B's shape and pairs of random tokens."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    # Weights that are trained themselves are fp32, as in a run.
    dtype = torch.bfloat16 if on_gpu and config.lora_rank else torch.float32
    count = config.batch_pairs * (config.warm_up + config.steps)
    if config.model == "qwen2.5-1.5b" or (config.model == "auto" and on_gpu):
        shape = random_qwen(torch.device("meta"))
        pairs = random_pairs(count, shape.config.vocab_size, config.max_length, config.seed)
        return Work(lambda: cast(Any, random_qwen(device)).to(dtype), pairs, on_gpu)
    policy, tokenizer = load_policy("world")
    source = checked({"name": config.name, "num_pairs": count, "seed": config.seed}, TrainConfig)
    world = training_pairs(source, policy, tokenizer, Progress(run))
    tokens = tokenize_pairs(world, tokenizer, config.max_length, {}, Progress(run))
    return Work(lambda: cast(Any, copy.deepcopy(policy)).to(device, dtype), tokens.dataset, on_gpu)


def measure(config: OverheadConfig, work: Work, run: Run) -> pd.DataFrame:
    """Time everything in turn, `rounds` times, every other round backwards.

    One row a timing: what, round, the seconds of each step, pairs a step, peak_gib,
    reference_seconds (a pair's in TRL's own reference pass; NaN without one), and error, the reason
    why it could not be run (too little memory). It is kept in the report's folder.
    """
    disable_progress_bars()
    contenders = _contenders(config, work)
    rows = []
    with Progress(run).phase("measuring", config.rounds * len(contenders)) as advance:
        for number in range(config.rounds):
            # What drifts (heat, other users of the machine) then falls on all alike.
            for name, timed in list(contenders.items())[:: -1 if number % 2 else 1]:
                try:
                    timing, error = timed(), None
                except torch.OutOfMemoryError:
                    timing, error = Timing(name, [], config.batch_pairs, 0.0), "out of memory"
                rows.append(
                    {
                        "what": name, "round": number, "seconds": timing.seconds,
                        "pairs": timing.pairs, "peak_gib": timing.peak_memory,
                        "reference_seconds": timing.reference, "error": error,
                    }
                )  # fmt: skip
                advance(1)
    timings = pd.DataFrame(rows)
    write_table(run.path / "timings.parquet", pa.Table.from_pandas(timings, preserve_index=False))
    return timings


def seconds_a_pair(config: OverheadConfig, work: Work) -> float:
    """A pair's arithmetic at the device's measured matrix rate, in the run's precision."""
    model = work.make()
    size = {} if work.on_gpu else {"size": 1024, "repeats": 10}
    rate = matrix_rate(model.device, torch.bfloat16 if work.on_gpu else torch.float32, **size)
    return needed_flops(model, work.pairs, config.lora_rank) / len(work.pairs) / rate


def _contenders(config: OverheadConfig, work: Work) -> Mapping[str, Callable[[], Timing]]:
    budget = config.tokens_per_forward or (_GPU_TOKENS if work.on_gpu else 0)
    row = budget or (1024 if config.model == "qwen2.5-1.5b" else 128)
    settings = checked(
        {
            "name": "overhead", "beta": 0.01, "learning_rate": 1e-5, "seed": config.seed,
            "lora_rank": config.lora_rank, "precision": "bf16" if work.on_gpu else "fp32",
            "batch_pairs": config.batch_pairs, "pairs_per_forward": config.batch_pairs,
            "tokens_per_forward": budget, "row_tokens": row,
        },
        TrainConfig,
    )  # fmt: skip
    some = [x for x in _trl_settings(work) if config.batch_pairs % x["pairs_per_forward"] == 0]
    trl = config.trl_settings or some
    return {
        DPO: partial(_engine, DPO, "dpo", settings, config, work),
        PLC: partial(_engine, PLC, "plc", settings, config, work),
        REFERENCE: partial(_reference_pass, settings, work),
        **{_trl_name(options): partial(_trl, options, config, work) for options in trl},
    }


def _engine(
    name: str, objective: Any, settings: TrainConfig, config: OverheadConfig, work: Work
) -> Timing:
    policy = work.make()
    if work.on_gpu:
        compile_layers(policy)
    model = add_lora(policy, config.lora_rank, config.lora_rank) if config.lora_rank else policy
    own = settings.model_copy(update={"objective": objective})
    with tempfile.TemporaryDirectory() as folder:
        return time_engine(name, model, work.pairs, own, config.warm_up, Path(folder))


def _trl(options: Mapping[str, Any], config: OverheadConfig, work: Work) -> Timing:
    model = work.make()
    reference = None if config.lora_rank else work.make()
    others = {key: value for key, value in options.items() if key != "pairs_per_forward"}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # TRL uses names that transformers is about to drop.
        warnings.filterwarnings("ignore", message=".*deprecated", category=FutureWarning)
        return time_trl(
            _trl_name(options), model, word_tokenizer(model.config.vocab_size), work.pairs,
            config.lora_rank, options["pairs_per_forward"], config.batch_pairs, config.warm_up,
            reference, Path(folder), bf16=work.on_gpu, max_length=config.max_length,
            use_cpu=not work.on_gpu, **others,
        )  # fmt: skip


def _reference_pass(settings: TrainConfig, work: Work) -> Timing:
    """Warmed up, and without what a run pays once however many pairs it has.

    That is the weights' identity and the pairs' keys: what a pass over a full cache takes.
    """
    policy = work.make()
    if work.on_gpu:
        compile_layers(policy)
    collator = StepCollator(
        PairCollator(settings.row_tokens), settings.pairs_per_forward, settings.tokens_per_forward
    )
    with tempfile.TemporaryDirectory() as folder:

        def seconds(pairs: Dataset, cache: str) -> float:
            start = time.perf_counter()
            with_reference(
                pairs, policy, Path(folder) / cache, collator, settings.autocast, Progress()
            )
            return time.perf_counter() - start

        seconds(work.pairs.select(range(settings.batch_pairs)), "warm-up")
        computed, reused = (seconds(work.pairs, "whole") for _ in range(2))
    return Timing(REFERENCE, [max(computed - reused, 1e-9)], len(work.pairs), 0.0)


def _trl_settings(work: Work) -> list[dict[str, Any]]:
    if not work.on_gpu:
        return _TRL_ON_A_CPU
    fused = _TRL_ON_A_GPU[1:] if find_spec("liger_kernel") else []
    return _TRL_ON_A_GPU + [settings | _LIGER for settings in fused]


def _trl_name(options: Mapping[str, Any]) -> str:
    checkpointing = "" if options.get("gradient_checkpointing", True) else "no "
    others = "".join(
        f", {key} {value}"
        for key, value in options.items()
        if key not in ("pairs_per_forward", "gradient_checkpointing")
    )
    return f"TRL, {options['pairs_per_forward']} a forward, {checkpointing}checkpointing{others}"

"""How fast this engine and TRL's DPOTrainer train on the same pairs: the paper's runtime table."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import resource
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset
from peft import LoraConfig
from torch import nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from plc_core.engine.arguments import training_arguments
from plc_core.engine.config import TrainConfig
from plc_core.engine.forward.packing import PairCollator, StepCollator
from plc_core.engine.trainer import PreferenceTrainer
from plc_core.engine.visits import VisitRecorder
from plc_core.objective import Router, build_objective
from plc_core.runs import create_run

QWEN_1_5B = {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
}  # fmt: skip
"""The shape of Qwen2.5-1.5B."""


@dataclass(frozen=True)
class Timing:
    """Optimizer steps after warm-up, one entry a step."""

    name: str
    seconds: list[float]
    pairs: int  # a step
    peak_memory: float  # GiB at most, warm-up included: allocated on a GPU, resident on a CPU
    warm_up: list[float] = field(default_factory=list)  # seconds, compilation included
    reference: float = math.nan  # seconds a pair, of a pass before the steps that was timed

    @property
    def pairs_per_second(self) -> float:
        """Of the median step."""
        return self.pairs / float(np.median(self.seconds))


def random_qwen(device: torch.device, **changes: Any) -> PreTrainedModel:
    """Qwen2.5-1.5B's shape with random weights, in bfloat16 on a GPU and fp32 on a CPU."""
    shape: dict[str, Any] = QWEN_1_5B | changes
    with torch.device(device):
        model: Any = Qwen2ForCausalLM(Qwen2Config(**shape))
    policy: PreTrainedModel = model.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    return policy


def random_pairs(count: int, vocabulary: int, max_length: int = 1024, seed: int = 0) -> Dataset:
    """Tokenised pairs of random tokens, as long as UltraFeedback's.

    Lengths are log-normal with means 162 (prompt), 321 (chosen) and 282 (rejected), and are cut as
    `tokenize_pairs` cuts them: the prompt to half of `max_length` first.
    """
    rng = np.random.default_rng(seed)
    spread = 0.6
    rows: dict[str, list[Any]] = {
        n: [] for n in ("pair_id", "prompt_ids", "chosen_ids", "rejected_ids")
    }
    for number in range(count):
        prompt, *sides = (
            max(2, int(mean * np.exp(spread * rng.standard_normal() - spread**2 / 2)))
            for mean in (162, 321, 282)
        )
        prompt = min(prompt, max(max_length - max(sides), max_length // 2))
        ids = [
            rng.integers(10, vocabulary, size).tolist()
            for size in (prompt, *(min(s, max_length - prompt) for s in sides))
        ]
        for name, value in zip(rows, (f"pair-{number}", *ids), strict=True):
            rows[name].append(value)
    return Dataset.from_dict(rows)


def time_engine(
    name: str,
    model: nn.Module,
    pairs: Dataset,
    config: TrainConfig,
    warm_up: int,
    folder: Path,
) -> Timing:
    """Time this engine's trainer, recorder and loading included, on pairs with any reference.

    The run that it writes lies below `folder`.
    """
    objective = build_objective(config.objective, beta=config.beta, **config.objective_options)
    shadow = None if objective.router is not None else Router()
    run = create_run(folder, f"{config.name}-{time.time_ns()}", {"kind": "training"})
    rows = len(pairs)
    tokens = pairs.add_column("reference_chosen", [-1000.0] * rows)
    tokens = tokens.add_column("reference_rejected", [-1000.0] * rows)
    arguments = training_arguments(config, run, rows, PartialState())
    arguments.save_strategy = "no"
    device = arguments.device
    forget_peak(device)
    trainer = PreferenceTrainer(
        model,
        arguments,
        tokens,
        StepCollator(
            PairCollator(config.row_tokens), config.pairs_per_forward, config.tokens_per_forward
        ),
        objective,
        shadow,
        VisitRecorder(run, tokens["pair_id"], config.beta),
    )
    return _time(name, trainer, config.batch_pairs, warm_up)


def time_trl(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    lora_rank: int,
    pairs_per_forward: int,
    batch_pairs: int,
    warm_up: int,
    reference: PreTrainedModel | None,
    folder: Path,
    **options: Any,
) -> Timing:
    """Time TRL's DPOTrainer on the text of `pairs`, whose tokens are `word_tokenizer`'s words.

    TRL ends each response with a token of its own, so it is given one token less. `reference` is
    a frozen copy of the model; with adapters TRL switches them off instead. `options` are those of
    DPOConfig; a reference that they have computed before the steps is timed by itself.
    """
    from trl import DPOConfig, DPOTrainer

    passes: list[float] = []

    class ReferenceTimed(DPOTrainer):
        """Times the reference's forwards of the pass before training, and nothing of a step."""

        def compute_ref_log_probs(self, *given: Any) -> Any:
            if not arguments.precompute_ref_log_probs:
                return super().compute_ref_log_probs(*given)
            wait_for(arguments.device)
            start = time.perf_counter()
            found = super().compute_ref_log_probs(*given)
            wait_for(arguments.device)
            passes.append(time.perf_counter() - start)
            return found

    columns = {
        side: [
            f"{tokenizer.decode(row[f'{side}_ids'][:kept])}{' ' if side == 'prompt' else ''}"
            for row in pairs
        ]
        for side, kept in (("prompt", None), ("chosen", -1), ("rejected", -1))
    }
    arguments = DPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=pairs_per_forward,
        gradient_accumulation_steps=batch_pairs // pairs_per_forward,
        num_train_epochs=1,
        learning_rate=1e-5,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **options,
    )
    forget_peak(arguments.device)
    trainer = ReferenceTimed(
        model,
        reference,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=lora_rank, lora_alpha=lora_rank, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        if lora_rank
        else None,
    )
    timing = _time(name, trainer, batch_pairs, warm_up)
    # Of a later round there is none: TRL finds the first one's in its cache.
    return replace(timing, reference=sum(passes) / len(pairs)) if passes else timing


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerBase:
    """A tokenizer whose words are the numbers below `vocabulary`: text as long as one asks for."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = {"<unk>": 0, "<pad>": 1, "<eos>": 2}
    numbers = {str(i): i for i in range(len(special), vocabulary)}
    words = Tokenizer(models.WordLevel(special | numbers, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>"
    )


def _time(name: str, trainer: Any, pairs: int, warm_up: int) -> Timing:
    device = trainer.args.device
    clock = _Clock(device)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(clock)
    trainer.train()
    seconds = clock.seconds()
    return Timing(name, seconds[warm_up:], pairs, peak_memory(device), seconds[:warm_up])


def wait_for(device: torch.device) -> None:
    """Return when the device has done what it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def forget_peak(device: torch.device) -> None:
    """Measure `peak_memory` from here; a CPU's where the system lets a process do so (Linux)."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> float:
    """GiB since `forget_peak`: allocated on a GPU; resident in this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 2**20
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class _Clock(TrainerCallback):
    """Seconds from the end of a step to the end of the next, by the clock of the device.

    A look at the host's clock would have to wait for the device, and then the device for the host.
    """

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self._ends: list[Any] = []

    def seconds(self) -> list[float]:
        """Of every step so far."""
        pairs = list(itertools.pairwise(self._ends))
        if not self.cuda:
            return [end - start for start, end in pairs]
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in pairs]

    def _note(self) -> None:
        if not self.cuda:
            self._ends.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._ends.append(event)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._note()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._note()

"""Make the controlled world's supervised checkpoint: `python -m plc_core.engine.world_sft`.

A Llama of 354 thousand parameters learns to answer as the imperfect writer does, from fresh
(prompt, answer) samples at every step. It first sees flawless answers, which teach it to copy
from the prompt, then the writer's own. About a minute and a half on two CPU cores.
"""

import argparse
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from plc_core.data.world import CHECKPOINT, RESPONSE_TOKENS, VOCABULARY, write_response
from plc_core.data.world.language import ANSWER, BOS, EOS, PAD
from plc_core.data.world.prompts import training_prompt
from plc_core.storage.manifest import list_checksums

logger = logging.getLogger(__name__)

MAX_LENGTH = 128  # the longest prompt has 32 tokens with <bos> and <ans>

# Specials stand between spaces like any word, so the rendered prompt is a prefix of the rendered
# prompt with its answer, in text and in ids.
CHAT_TEMPLATE = f"""\
{{%- for message in messages -%}}
{{%- if message['role'] == 'user' and loop.first -%}}
{{{{- '{BOS} ' + message['content'] | trim -}}}}
{{%- elif message['role'] == 'assistant' and loop.index == 2 -%}}
{{{{- ' {ANSWER} ' + message['content'] | trim + ' {EOS}' -}}}}
{{%- else -%}}
{{{{- raise_exception("The controlled world's model takes one user message and then at most one "
    "assistant message; message " ~ loop.index ~ " has role '" ~ message['role'] ~ "'.") -}}}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}{{{{- ' {ANSWER}' -}}}}{{%- endif -%}}
"""


@dataclass(frozen=True)
class WorldSFTConfig:
    """Settings of the supervised stage; the committed checkpoint was made with the defaults."""

    steps: int = 850
    seed: int = 0
    batch_size: int = 64  # fresh samples a step
    chunk_size: int = 32  # samples a forward, sorted by length so that little is padding
    learning_rate: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    warmup_steps: int = 50  # linear, then cosine to zero
    clip_norm: float = 1.0
    flawless_until: int = 85  # all answers are flawless before this step
    flawed_from: int = 170  # and none on purpose from this one on; linear in between

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))

    def flawless_share(self, step: int) -> float:
        """Share of answers without any flaw at a step, counted from 0."""
        ramp = (self.flawed_from - step) / (self.flawed_from - self.flawless_until)
        return min(1.0, max(0.0, ramp))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The word-level tokenizer: a word's id is its place in `VOCABULARY`.

    It adds no special tokens by itself (the chat template writes them out), decodes to words
    between single spaces, and has no unknown word: encoding a word outside the vocabulary raises
    an error of the `tokenizers` library.
    """
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(VOCABULARY)}))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        extra_special_tokens=[ANSWER],
        padding_side="left",
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def build_model(seed: int) -> LlamaForCausalLM:
    """A freshly initialised Llama in float32: 2 layers, width 128, 8 heads, tied embeddings."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=MAX_LENGTH,
        # With the usual 0.02 a model this narrow hardly learns to copy from the prompt.
        initializer_range=0.08,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=True,
        pad_token_id=VOCABULARY.index(PAD),
        bos_token_id=VOCABULARY.index(BOS),
        eos_token_id=VOCABULARY.index(EOS),
    )
    return LlamaForCausalLM(config)


def train(config: WorldSFTConfig) -> LlamaForCausalLM:
    """Train the supervised model on answers of the imperfect writer; returns it in float32."""
    tokenizer = build_tokenizer()
    model = build_model(config.seed)
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=config.betas, weight_decay=config.weight_decay
    )
    rng = np.random.default_rng(config.seed)
    with tqdm(range(config.steps), desc="world SFT", unit="step") as bar:
        for step in bar:
            for group in optimizer.param_groups:
                group["lr"] = config.rate(step)
            rows = _sample_rows(tokenizer, rng, config.batch_size, config.flawless_share(step))
            loss = _backward(model, rows, config.chunk_size)
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
    return model.eval()


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """Write model (float16 safetensors), tokenizer and generation settings to `folder`.

    The configuration names float32, so the weights are loaded as float32 unless asked otherwise.
    `model` is left in float16.
    """
    tokenizer = build_tokenizer()
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        max_new_tokens=RESPONSE_TOKENS,
    )
    model.half().save_pretrained(folder)
    model.config.dtype = torch.float32
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    list_checksums(folder)


def _sample_rows(
    tokenizer: PreTrainedTokenizerFast,
    rng: np.random.Generator,
    count: int,
    flawless_share: float,
) -> list[tuple[list[int], int]]:
    """(token ids, number of prompt tokens) of `count` fresh samples, shortest first."""
    prompts = [training_prompt(rng) for _ in range(count)]
    answers = [write_response(prompt, rng, flawless_share) for prompt in prompts]
    opened = [f"{BOS} {prompt.text} {ANSWER}" for prompt in prompts]
    texts = [f"{start} {answer} {EOS}" for start, answer in zip(opened, answers, strict=True)]
    ids: list[list[int]] = tokenizer(texts)["input_ids"]
    rows = [(row, len(start.split())) for row, start in zip(ids, opened, strict=True)]
    return sorted(rows, key=lambda row: len(row[0]))


def _backward(
    model: LlamaForCausalLM, rows: Sequence[tuple[list[int], int]], chunk_size: int
) -> float:
    """Add the gradient of the mean loss over all answer tokens; returns that loss in nats."""
    answer_tokens = sum(len(ids) - prompt for ids, prompt in rows)
    total = 0.0
    for start in range(0, len(rows), chunk_size):
        chunk = rows[start : start + chunk_size]
        width = max(len(ids) for ids, _ in chunk)
        inputs = torch.full((len(chunk), width), VOCABULARY.index(PAD))
        labels = torch.full((len(chunk), width), -100)
        for i, (ids, prompt) in enumerate(chunk):
            inputs[i, : len(ids)] = torch.tensor(ids)
            labels[i, prompt : len(ids)] = torch.tensor(ids[prompt:])
        # Padding stands on the right, where causal attention never looks from a real token.
        logits = model(input_ids=inputs, use_cache=False).logits[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
        loss = loss / answer_tokens
        loss.backward()
        total += loss.item()
    return total


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: train with the given options and write the checkpoint."""
    parser = argparse.ArgumentParser(description="Make the controlled world's SFT checkpoint.")
    parser.add_argument("--out", type=Path, default=CHECKPOINT, help="folder to write")
    parser.add_argument("--steps", type=int, default=WorldSFTConfig.steps)
    parser.add_argument("--seed", type=int, default=WorldSFTConfig.seed)
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps is {options.steps}, expected at least 1")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    save(train(WorldSFTConfig(steps=options.steps, seed=options.seed)), options.out)
    logger.info("wrote %s", options.out)


if __name__ == "__main__":
    main()

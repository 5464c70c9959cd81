"""Responses of a run's policy, and of its reference, to held-out prompts of the world."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import pandas as pd
import pyarrow as pa
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plc_core.data.world import RESPONSE_TOKENS, WorldPrompt
from plc_core.data.world.prompts import held_out_prompts
from plc_core.engine.checkpoints import load_trained
from plc_core.engine.logprobs import response_logps
from plc_core.engine.models import load_policy, model_identity
from plc_core.engine.packing import PairCollator
from plc_core.engine.sampling import generate
from plc_core.engine.tokens import prompt_ids
from plc_core.evaluation.generate import GENERATIONS
from plc_core.files import make_folder, write_table
from plc_core.progress import Progress
from plc_core.runs import Run
from plc_core.storage import cached_table

_SAMPLING_SEED = 0
_COLUMNS = [*GENERATIONS.names, "policy_logp", "reference_logp"]


def generate_world(run: Run, count: int) -> pd.DataFrame:
    """Answer the first `count` held-out prompts and write generations/world.parquet.

    One row a prompt, policy ("trained", "reference") and decoding ("greedy", "sampled" at
    temperature 1, the same seed for every run), in the columns of every benchmark's answers, and
    beside them the response's log-probs under both policies, in nats. The reference's rows are
    kept by content and shared by all runs.
    """
    config = run.info["config"]
    with run.running("evaluating"):
        progress = Progress(run)
        reference, tokenizer = load_policy(config["model"])
        trained = load_trained(run)
        prompts = held_out_prompts(count)
        ids = [prompt_ids(tokenizer, [{"role": "user", "content": p.text}]) for p in prompts]
        collator = PairCollator(config["row_tokens"])
        frames = [
            _reference_responses(reference, tokenizer, prompts, ids, collator, progress),
            _responses(trained, reference, "trained", tokenizer, prompts, ids, collator, progress),
        ]
        generations = pd.concat(frames, ignore_index=True)
        make_folder(run.path / "generations")
        write_table(
            run.path / "generations" / "world.parquet",
            pa.Table.from_pandas(generations, preserve_index=False),
        )
    return generations


def _reference_responses(
    reference: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[WorldPrompt],
    ids: Sequence[list[int]],
    collator: PairCollator,
    progress: Progress,
) -> pd.DataFrame:
    texts = [prompt.text for prompt in prompts]
    settings = [model_identity(reference), texts, RESPONSE_TOKENS, _SAMPLING_SEED, _COLUMNS]

    def answer() -> pa.Table:
        frame = _responses(
            reference, reference, "reference", tokenizer, prompts, ids, collator, progress
        )
        return pa.Table.from_pandas(frame, preserve_index=False)

    return cached_table("generations", settings, answer).to_pandas()


def _responses(
    policy: PreTrainedModel | PeftModel,
    reference: PreTrainedModel,
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[WorldPrompt],
    ids: Sequence[list[int]],
    collator: PairCollator,
    progress: Progress,
) -> pd.DataFrame:
    frames = []
    for decoding in ("greedy", "sampled"):
        responses = generate(
            policy, tokenizer, ids, decoding, RESPONSE_TOKENS, _SAMPLING_SEED, progress=progress
        )
        response_ids = [r.ids for r in responses]
        policy_logps = response_logps(policy, ids, response_ids, collator)
        reference_logps = policy_logps
        if policy is not reference:
            reference_logps = response_logps(reference, ids, response_ids, collator)
        texts = [prompt.text for prompt in prompts]
        asked = [[{"role": "user", "content": text}] for text in texts]
        columns = {
            "prompt_id": [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts],
            "turn": 1,
            "category": [prompt.family for prompt in prompts],
            "policy": name,
            "decoding": decoding,
            "prompt": texts,
            "conversation": [json.dumps(turns, ensure_ascii=True) for turns in asked],
            "response": [r.text for r in responses],
            "finished": [r.finished for r in responses],
            "empty": [not r.text for r in responses],
            "response_tokens": [len(r.ids) for r in responses],
            "policy_logp": policy_logps,
            "reference_logp": reference_logps,
        }
        frames.append(pd.DataFrame(columns, columns=_COLUMNS))
    return pd.concat(frames, ignore_index=True)

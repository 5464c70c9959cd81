"""What a frozen model's hidden states say of a pair's two answers: one packed forward, kept.

Of every pair: at some depths of the model, the state at the answer's last token and the mean over
the answer's tokens, chosen minus rejected. Layers above the deepest one asked for are not run.
The differences lie on disk by content (model, precision, attention, depths; tokens of the pair), in
parts that a kill leaves whole, so that a second call, another noise rate or more pairs compute only
what is missing; they are read from there a part at a time and never held in memory all at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from plc_core.data import Pairs
from plc_core.engine.forward.attention import (
    attention_kind,
    attention_mask,
    packed_rows,
    whole_blocks,
)
from plc_core.engine.forward.logprobs import autocast, numerics, verify_packing
from plc_core.engine.forward.packing import PairCollator, StepCollator, pair_sizes, response_lengths
from plc_core.engine.models.load import compile_layers, load_policy
from plc_core.engine.reference import in_token_order, with_reference
from plc_core.engine.tokens.tokenized import content_keys, tokenize_pairs
from plc_core.label_audit.config import Kind
from plc_core.label_audit.evidence import ModelReadings
from plc_core.label_audit.hidden_cache import POOLS, HiddenDifferences
from plc_core.label_audit.probe import Rows
from plc_core.progress import Progress
from plc_core.storage.cache import content_hash
from plc_core.storage.files import RunError, is_there, write_json
from plc_core.storage.paths import cache_dir, exclusive

DEPTHS = (0.5, 0.6, 0.7, 0.8)
"""Shares of the layers. Linear probes were best at .6 to .7 in models of 135 M and 1.5 B."""

_PAIRS_A_PART = 1024
_TOKENS_ON_A_GPU = 24_576
_TOKENS_ON_A_CPU = 1_024
"""Of a forward: enough to keep the device busy, and on a CPU few enough for its caches."""
_MOST_READERS = 8  # threads beside each other on a CPU; with more they wait for the interpreter


def hidden_differences(
    dataset: Dataset,
    model: PreTrainedModel,
    collator: StepCollator,
    bf16: bool,
    progress: Progress,
    depths: Sequence[float] = DEPTHS,
) -> dict[int, Rows]:
    """The hidden-state differences of tokenised pairs by layer, from the cache or computed now.

    Args:
        dataset: of `tokenize_pairs`, whose answers all have a token.
        model: frozen, on its device.
        collator: of forwards.
        bf16: forwards in bfloat16 by autocast.
        depths: shares of the model's layers, in (0, 1].

    Raises:
        RunError: where states are not finite, or the cache cannot be written.
        ModelError: where packed rows change what the model computes.
        ValueError: where an answer has no tokens, and so no state.
    """
    if not response_lengths(dataset).all():
        raise ValueError("An answer without tokens has no hidden state.")
    decoder: Any = model.get_decoder()
    count = len(decoder.layers)
    layers = sorted({min(count, max(1, round(depth * count))) for depth in depths})
    row_tokens = collator.collator.row_tokens
    computed = numerics(model, bf16, row_tokens)
    settings = computed | {"layers": layers, "pooling": "last token, mean"}
    folder = cache_dir() / "hidden_states" / content_hash(settings)
    kept = HiddenDifferences(folder, layers, int(model.config.hidden_size))
    keys = content_keys(dataset)
    signs = np.array([1.0 if in_token_order(row) else -1.0 for row in dataset], np.float32)
    with exclusive(kept.folder):
        kept.read()
        if not is_there(said := kept.folder / "settings.json"):
            write_json(said, settings)
        missing = {key: place for place, key in enumerate(keys) if key not in kept}
        if missing:
            verify_packing(model, dataset, bf16, row_tokens)
            if model.device.type == "cuda":
                compile_layers(model)
            rows = dataset.select(missing.values())
            _fill(kept, list(missing), rows, signs[list(missing.values())], model, collator, bf16,
                  progress)  # fmt: skip
    return {layer: partial(kept.rows, depth, keys, signs) for depth, layer in enumerate(layers)}


def read_model(
    pairs: Pairs, model: str, max_length: int, kinds: set[Kind], progress: Progress
) -> tuple[Pairs, ModelReadings]:
    """The pairs that the model can read, and of `kinds` what it says of them.

    In bfloat16 on a GPU and on a CPU that multiplies in it, where it takes a third of the time;
    elsewhere in fp32.

    Raises:
        ModelError: where the model cannot be loaded, or not be run on packed rows.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    bf16 = on_gpu or _multiplies_bf16()
    policy, tokenizer = load_policy(model, "bf16" if bf16 else "fp32")
    policy.to(device)  # type: ignore[arg-type]
    tokens = tokenize_pairs(pairs, tokenizer, max_length, {}, progress)
    room = _TOKENS_ON_A_GPU if on_gpu else _TOKENS_ON_A_CPU
    most = max(room, int(pair_sizes(tokens.dataset).max()))
    collator = StepCollator(PairCollator(most), _PAIRS_A_PART, most)  # a row a forward: no padding
    hidden, log_probs = None, None
    if "hidden states" in kinds:
        hidden = hidden_differences(tokens.dataset, policy, collator, bf16, progress)
    if "likelihood" in kinds:
        known, _ = with_reference(tokens.dataset, policy, cache_dir(), collator, bf16, progress)
        sides = [known[f"reference_{side}"][:] for side in ("chosen", "rejected")]
        log_probs = np.array(sides, dtype=np.float64).T
    lengths = response_lengths(tokens.dataset).astype(np.int64)
    return tokens.pairs, ModelReadings(hidden, lengths, log_probs)


def _multiplies_bf16() -> bool:
    """Whether this CPU has units for bfloat16 matrix products (Intel's AMX)."""
    known: Callable[[], Mapping[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)
    return bool(known().get("amx_bf16"))


def _fill(
    kept: HiddenDifferences,
    keys: list[str],
    rows: Dataset,
    signs: NDArray[np.float32],
    model: PreTrainedModel,
    collator: StepCollator,
    bf16: bool,
    progress: Progress,
) -> None:
    order = np.argsort(-pair_sizes(rows), kind="stable").tolist()
    with (
        _tapped(model, kept.layers) as tap,
        packed_rows(model),
        _readers(model.device) as read,
        progress.phase("hidden states", len(order)) as advance,
    ):
        row_tokens = collator.collator.row_tokens
        one = partial(_differences, model, row_tokens=row_tokens, bf16=bf16, tap=tap)
        for start in range(0, len(order), _PAIRS_A_PART):
            members = order[start : start + _PAIRS_A_PART]
            part = np.zeros((len(members), len(kept.layers), POOLS, kept.width), np.float16)
            forwards = collator([rows[i] for i in members])["forwards"]
            for batch, values in zip(forwards, read(one, forwards), strict=True):
                part[batch["place"].numpy()] = values
                advance(len(batch["place"]))
            if not np.isfinite(part).all():
                raise RunError("Hidden states are not finite; look at the model's weights.")
            turned = part * signs[members, None, None, None].astype(np.float16)
            kept.add([keys[i] for i in members], turned)


@contextlib.contextmanager
def _readers(device: torch.device) -> Iterator[Callable[..., Iterable[NDArray[np.float16]]]]:
    """`map`, on a CPU over several threads that each read a forward of their own.

    The operations of a small model are so short that threads which share one wait for each other
    longer than they compute: with a core each, two read twice as much, and where others take part
    of the time, several times. What is read does not depend on how many there are.
    """
    if device.type != "cpu":
        yield map
        return
    threads = torch.get_num_threads()
    readers = min(threads, _MOST_READERS)
    with ThreadPoolExecutor(
        readers, initializer=torch.set_num_threads, initargs=(threads // readers,)
    ) as pool:
        try:
            yield pool.map
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)  # of threads that are started from now on


@torch.inference_mode()
def _differences(
    model: PreTrainedModel,
    batch: Mapping[str, Tensor],
    row_tokens: int,
    bf16: bool,
    tap: threading.local,
) -> NDArray[np.float16]:
    """[B, depths, 2, width] of one packed forward."""
    batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
    tap.states = []
    decoder: Any = model.get_decoder()
    with autocast(model.device, bf16):
        kind = attention_kind(model, row_tokens)
        padded = whole_blocks(batch) if kind == "flex" else batch
        decoder(
            input_ids=padded["input_ids"],
            attention_mask=attention_mask(padded, kind),
            position_ids=padded["position_ids"],
            use_cache=False,
        )
    lengths = batch["lengths"]
    ends = lengths.cumsum(0)
    # The answers' tokens one after the other, and where in its row each of them stands.
    count = len(batch["targets"])
    shift = batch["spans"][:, 2:4].flatten() - (ends - lengths)
    columns = torch.arange(count, device=model.device)
    columns = columns + shift.repeat_interleave(lengths, output_size=count)
    chosen, rejected = slice(0, None, 2), slice(1, None, 2)
    pooled = []
    for state in tap.states:
        tokens = state[batch["predict_row"], columns].float()  # [N, width]
        mean = torch.segment_reduce(tokens, "mean", lengths=lengths, unsafe=True)
        both = torch.stack((tokens[ends - 1], mean), 1)  # [2B, 2, width]
        pooled.append(both[chosen] - both[rejected])
    limit = float(np.finfo(np.float16).max)
    return torch.stack(pooled, 1).clamp(-limit, limit).to(torch.float16).cpu().numpy()


@contextlib.contextmanager
def _tapped(model: PreTrainedModel, layers: Sequence[int]) -> Iterator[threading.local]:
    """Within, a forward leaves the states behind `layers` in its thread's `states`, a list, and
    ends with the last."""
    decoder: Any = model.get_decoder()
    every: nn.ModuleList = decoder.layers
    tap = threading.local()

    def keep(module: nn.Module, given: Any, output: Any) -> None:
        tap.states.append(output[0] if isinstance(output, tuple) else output)

    hooks = [every[number - 1].register_forward_hook(keep) for number in layers]
    decoder.layers = every[: layers[-1]]
    was_training = model.training
    model.eval()
    try:
        yield tap
    finally:
        decoder.layers = every
        model.train(was_training)
        for hook in hooks:
            hook.remove()

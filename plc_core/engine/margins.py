"""Margins of a trained policy over pairs it need not have been trained on."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedTokenizerBase

from plc_core.data import Pairs
from plc_core.data.corruption.flips import reverse
from plc_core.engine.checkpoints import load_trained
from plc_core.engine.logprobs import autocast, pair_logps
from plc_core.engine.models import load_policy
from plc_core.engine.packing import PairCollator, StepCollator, response_lengths
from plc_core.engine.reference import with_reference
from plc_core.engine.tokens import tokenize_pairs
from plc_core.files import cache_dir
from plc_core.progress import Progress
from plc_core.runs import LENGTH_COLUMNS, Run


def final_margins(
    run: Run, pairs: Pairs, tokenizer: PreTrainedTokenizerBase, progress: Progress
) -> pd.Series:
    """`policy_margins` of the answer that was read as chosen, whichever is observed as chosen now.

    Raises:
        RunError: where the run has no trained policy.
    """
    as_read = pairs.map(lambda batch, _: reverse(batch, batch["flipped"].to_numpy()))
    return policy_margins(run, as_read, tokenizer, progress)["margin"]


@torch.no_grad()
def policy_margins(
    run: Run, pairs: Pairs, tokenizer: PreTrainedTokenizerBase, progress: Progress
) -> pd.DataFrame:
    """The margin of each pair under a run's trained policy against its own start, by pair id.

    Columns: margin, in nats, as beta [log pi/pi_ref(chosen) - log pi/pi_ref(rejected)] (eq. mseq),
    and chosen_tokens and rejected_tokens. Pairs that the chat template refuses have no row.

    Raises:
        RunError: where the run has no trained policy.
    """
    config = run.info["config"]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trained: Any = load_trained(run)
    reference: Any = load_policy(config["model"])[0]
    trained.to(device).eval()
    reference.to(device)
    bf16 = config["precision"] == "bf16"
    size = config["pairs_per_forward"]
    collator = StepCollator(
        PairCollator(config["row_tokens"]), size, config.get("tokens_per_forward", 0)
    )
    tokens = tokenize_pairs(pairs, tokenizer, config["max_length"], progress=progress).dataset
    tokens, _ = with_reference(tokens, reference, cache_dir(), collator, bf16, progress)
    margins = torch.empty(len(tokens))
    with progress.phase("margins", len(tokens)) as advance, autocast(device, bf16):
        for start in range(0, len(tokens), size):
            rows = [tokens[i] for i in range(start, min(start + size, len(tokens)))]
            for batch in collator(rows)["forwards"]:
                on_device = {name: value.to(device) for name, value in batch.items()}
                ratio = torch.stack(pair_logps(trained, on_device), 1) - on_device["reference"]
                margin = config["beta"] * (ratio[:, 0] - ratio[:, 1])
                margins[start + batch["place"]] = margin.float().cpu()
            advance(len(rows))
    table = pd.DataFrame(
        response_lengths(tokens), index=tokens["pair_id"][:], columns=list(LENGTH_COLUMNS)
    )
    return table.assign(margin=margins.tolist())

"""Evidence that costs more: a finished run's margins, a judge's scores, DPO trained out of fold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from plc_core.data import DataError, Pairs
from plc_core.label_audit.cleaning import export_pairs
from plc_core.label_audit.probe import prompt_folds
from plc_core.progress import Progress
from plc_core.runs import Run
from plc_core.storage.cache import cached_folder, content_hash
from plc_core.storage.paths import cache_dir

_DPO_FOLDS = 3


def run_margins(run: Run, pairs: Pairs) -> NDArray[np.float64]:
    """[pairs] the calibrated margin z of each pair at its first visit of a finished run.

    That visit comes before the run learnt from the pair, if not from others of its prompt. q_flip
    and RE-PO's posterior are functions of the margin, so they rank alike and are no columns of
    their own. NaN for pairs that the run does not have.

    Raises:
        DataError: where the run and the pairs have none in common.
        RunError: where the run cannot be read.
    """
    visits = run.visits(["pair_id", "z"]).drop_duplicates("pair_id").set_index("pair_id")["z"]
    then = run.pairs(["pair_id", "chosen"]).set_index("pair_id")["chosen"]
    now = pd.Series(pairs.dataset["chosen"][:], index=pairs.dataset["pair_id"][:])
    common = now.index.intersection(visits.index)
    if not len(common):
        raise DataError(f"The run {run.name!r} has none of these pairs.")
    signs = np.where(then[common].to_numpy() == now[common].to_numpy(), 1.0, -1.0)
    found: NDArray[np.float64] = (visits[common] * signs).reindex(now.index).to_numpy(float)
    return found


def judge_scores(judge: str, pairs: Pairs, progress: Progress) -> NDArray[np.float64]:
    """[pairs] score of the chosen answer minus that of the rejected one; NaN without a score.

    Args:
        judge: a reward model, or a language model behind a server; see `named_judge`.
    """
    from plc_core.evaluation.judges.named import named_judge  # torch

    asked = named_judge(judge)
    table = pairs.table.select(["pair_id", "prompt", "chosen", "rejected"]).to_pandas()
    scores = []
    for side in ("chosen", "rejected"):
        answers = pd.DataFrame(
            {
                "prompt_id": table["pair_id"],
                "turn": 0,
                "prompt": [turns[-1]["content"] for turns in table["prompt"]],
                "conversation": [json.dumps([dict(t) for t in turns]) for turns in table["prompt"]],
                "response": table[side],
                "finished": True,
            }
        )
        found = asked.score(answers, progress)
        scores.append([np.nan if s.value is None else s.value for s in found])
    chosen, rejected = np.array(scores, dtype=float)
    return np.asarray(chosen - rejected)


def dpo_margins(
    pairs: Pairs, prompts: list[str], parameters: Mapping[str, Any], name: str, progress: Progress
) -> NDArray[np.float64]:
    """[pairs] DPO's margin of each pair, from a training on two thirds of the other prompts.

    Three trainings, whose runs are kept under names of their content beside the audit's.

    Args:
        prompts: [pairs], whatever tells one prompt from another.
        parameters: of a training run, runs_dir among them.
        name: of the audit, with which the names of the runs begin.

    Raises:
        RunError, DataError: where a training cannot be done.
    """
    from plc_core.engine.config import TrainConfig  # torch
    from plc_core.engine.models.load import load_tokenizer
    from plc_core.engine.pipeline import train
    from plc_core.engine.reference import policy_margins

    folds = prompt_folds(prompts, _DPO_FOLDS)
    found = pd.Series(np.nan, index=pairs.dataset["pair_id"][:])
    for fold in range(_DPO_FOLDS):
        file = fold_file(pairs, folds, fold)
        content = dict(parameters) | {"data": str(file), "objective": "dpo", "eval_prompts": 0}
        own = f"{name}-fold{fold}-{content_hash(content)[:8]}"
        config = TrainConfig.model_validate(content | {"name": own, "resume": True})
        run = train(config)
        margins = policy_margins(
            run, _only(pairs, folds == fold), load_tokenizer(config.model), progress
        )["margin"]
        found[margins.index] = margins
    return np.asarray(found, dtype=np.float64)


def fold_file(pairs: Pairs, folds: NDArray[np.int64], fold: int) -> Path:
    """The pairs of all folds but one as a file in the cache, whole or made now."""
    settings = [pairs.fingerprint, _DPO_FOLDS, fold]
    folder = cached_folder(
        cache_dir() / "audit_folds" / content_hash(settings),
        lambda new: export_pairs(_only(pairs, folds != fold).batches(), new / "pairs.parquet"),
    )
    return folder / "pairs.parquet"


def _only(pairs: Pairs, wanted: NDArray[np.bool_]) -> Pairs:
    return pairs.map(lambda batch, start: batch.filter(wanted[start : start + len(batch)]))

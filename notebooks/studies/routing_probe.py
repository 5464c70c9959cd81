"""Zero-shot routing: where a trained policy would send pairs that it need not have been trained on.

The scores of a probe lie in the run's folder, `scores/<probe>.parquet`: everything about them is
read from that file. A probe is scored under two calibrations: `checkpoint`, the running mean and
variance that training ended with, and `self`, the probe's own, which asks for its order alone.
Under an objective without routing it is the shadow router's: DPO's own margin beside PLC's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from plc_core.data import DataError, Pairs
from plc_core.data.corruption import inject_ties, label_by_annotator, simulate_votes
from plc_core.data.corruption.draws import uniform
from plc_core.data.corruption.flips import mark_oracle_states, reverse
from plc_core.data.slices import first_pairs, of_prompts, prompt_digest
from plc_core.data.votes import vote_groups
from plc_core.engine.checkpoints import load_objective_state, trained_checkpoint
from plc_core.engine.config import TrainConfig
from plc_core.engine.models.load import load_policy, load_tokenizer
from plc_core.engine.pipeline import objectives
from plc_core.engine.reference import policy_margins
from plc_core.engine.row_sources import Source, WorldSource, load_ties, source_of
from plc_core.engine.training_pairs import trained_and_held_out, training_pairs
from plc_core.evaluation.completeness import refuse_missing
from plc_core.objective import Router
from plc_core.objective.margin_ema import MarginCalibration
from plc_core.progress import Progress
from plc_core.runs import LENGTH_COLUMNS, Run
from plc_core.storage.files import RunError, read_table, write_table

Calibrated: TypeAlias = Literal["checkpoint", "self"]
CALIBRATIONS: tuple[Calibrated, ...] = ("checkpoint", "self")

_HELD_OUT_SEED = 1_000_000
_KEPT = [
    *("pair_id", "source", "score_chosen", "score_rejected"),
    *("flipped", "injected_tie", "oracle_state"),
]
_META = b"plc_probe"


def check_probe(run: Run, name: str, make: bool) -> None:
    """RunError where the run has no scores of this probe and none are to be made.

    Asked before the probe's pairs are read, which may have to be sampled.
    """
    if not make and not _probe_path(run, name).exists():
        refuse_missing(f"the routing of the pairs {name!r}", [run.name])


def score_probe(run: Run, name: str, pairs: Pairs, make: bool = True) -> pd.DataFrame:
    """Score `pairs` by the run's last checkpoint and keep it as `scores/<name>.parquet`.

    One row a pair and calibration: calibration, pair_id, margin (nats, of the observed label), z,
    q_clean, q_flip, q_tie, confidence, and of the pair source, scores, markers, oracle_state,
    group (of its votes, else null), chosen_tokens and rejected_tokens. Pairs that the chat template
    refuses have NaN. What was scored before, of the same pairs by the same checkpoint, is read
    again.

    Raises:
        RunError: where the run has no trained policy; unless `make`, where it has not scored them.
    """
    path = _probe_path(run, name)
    checkpoint = trained_checkpoint(run)
    what = {"pairs": pairs.fingerprint, "groups": _digest(pairs), "checkpoint": checkpoint.name}
    kept = _kept(path, what)
    if kept is not None:
        return kept
    if not make:
        refuse_missing(f"the routing of just the pairs {name!r}", [run.name])
    config = run.info["config"]
    progress = Progress(run)
    margins = policy_margins(run, pairs, load_tokenizer(config["model"]), progress)
    router = router_of(run, checkpoint)
    table = pairs.table.select(_KEPT).to_pandas()
    table["group"] = vote_groups(pairs)["group"].to_numpy()
    margins = margins.reindex(table["pair_id"]).reset_index(drop=True)
    table[list(margins.columns)] = margins
    lengths = torch.tensor(margins[list(LENGTH_COLUMNS)].to_numpy(np.float64))
    frames = [_routed(table, lengths, router, calibration) for calibration in CALIBRATIONS]
    scores = pd.concat(frames, ignore_index=True)
    path.parent.mkdir(exist_ok=True)
    arrow = pa.Table.from_pandas(scores, preserve_index=False)
    metadata = {**(arrow.schema.metadata or {}), _META: json.dumps(what).encode()}
    write_table(path, arrow.replace_schema_metadata(metadata))
    return read_table(path).to_pandas()


def _probe_path(run: Run, name: str) -> Path:
    return run.path / "scores" / f"{name}.parquet"


def router_of(run: Run, checkpoint: Path) -> Router:
    """The run's router, or the shadow's, with the calibration of a checkpoint."""
    objective, shadow = objectives(_config_of(run))
    load_objective_state(checkpoint, objective, shadow)
    router = objective.router or shadow
    assert router is not None  # every run has one of the two
    return router


def _routed(
    table: pd.DataFrame, lengths: torch.Tensor, router: Router, calibration: Calibrated
) -> pd.DataFrame:
    margin = torch.tensor(table["margin"].to_numpy(), dtype=torch.float64)
    known = ~margin.isnan()
    before = router.calibration
    try:
        if calibration == "self":
            # After one step the bias-corrected average is that step's own mean and variance.
            router.calibration = MarginCalibration(before.alpha, before.sigma_min)
            router.calibration.observe(router.evidence(margin, lengths)[known])
            router.calibration.commit()
        routing = router(margin, progress=1.0, update=False, lengths=lengths)
    finally:
        router.calibration = before
    columns: dict[str, Any] = {"calibration": calibration, "z": routing.z.numpy()}
    columns |= {f"q_{s}": getattr(routing, s).numpy() for s in ("clean", "flip", "tie")}
    columns["confidence"] = routing.confidence.numpy()
    return table.assign(**columns)


def _kept(path: Path, what: Mapping[str, Any]) -> pd.DataFrame | None:
    if not path.exists():
        return None
    try:
        table = read_table(path)
        same = json.loads((table.schema.metadata or {}).get(_META, b"{}")) == what
    except (RunError, ValueError):  # damaged: scored again
        return None
    return table.to_pandas() if same else None


def _digest(pairs: Pairs) -> str:
    """Of what is kept beside the fingerprint's columns: scores and votes."""
    digest = hashlib.sha256()
    for batch in pairs.batches(["score_chosen", "score_rejected", "votes"]):
        digest.update(json.dumps(batch.to_pydict()).encode())
    return digest.hexdigest()[:16]


def held_out_pairs(run: Run, count: int, progress: Progress | None = None) -> Pairs:
    """Pairs that a run was not trained on, with their labels as they were read.

    The first `count` of the part of its pairs that the run held out, if it did; else fresh ones of
    the world, or of its data's test split those whose prompts it was not trained on. Fresh ones
    have clean labels and belong to the run's seed; `count` is of their prompts.

    Raises:
        DataError: where there are none, as the run held nothing out.
    """
    own = _config_of(run)
    if own.held_out:
        _, held_out = trained_and_held_out(own, progress or Progress(run))
        assert held_out is not None
        pairs = first_pairs(held_out, count)
    else:
        # The world's pairs are samples of its one starting policy, whatever the run's model is.
        source = _source(own)
        if not isinstance(source, WorldSource):
            return _test_split(run, own, count)
        pairs = source.pairs(count, _HELD_OUT_SEED + own.seed, progress or Progress(run))
    return mark_oracle_states(pairs) if _source(own).scores_are_true else pairs


def held_out_ties(run: Run, count: int, rate: float, progress: Progress | None = None) -> Pairs:
    """Held-out pairs (`held_out_pairs`) of which a share is replaced by exact ties.

    The ties too are of prompts that the run was not trained on; in the world of fresh ones.

    Raises:
        DataError: where the data have neither a tie pool nor ties enough.
    """
    own = _config_of(run)
    pairs = held_out_pairs(run, count, progress)
    source = _source(own)
    if isinstance(source, WorldSource) and own.tie_pool is None:
        pool = source.ties(len(pairs), _HELD_OUT_SEED + own.seed, progress or Progress(run))
    else:
        pool = load_ties(source, own, progress or Progress(run))
        pool = of_prompts(pool, _trained_prompts(run), inside=False)
    ties = inject_ties(pairs, pool, rate, own.seed)
    return mark_oracle_states(ties) if source.scores_are_true else ties


def _source(config: TrainConfig) -> Source:
    return source_of(config.data, config.data_revision)


def _test_split(run: Run, config: TrainConfig, count: int) -> Pairs:
    """The first `count` pairs of the data's test split whose prompts the run was not trained on.

    A file that names no split is read as any: its pairs beyond `num_pairs` are such.
    """
    why = "the run was trained on all of its prompts"
    try:
        whole = {"data_split": "test", "num_pairs": None, "evaluation_prompts": None}
        pairs = _source(config).load(config.model_copy(update=whole), Progress())
        unseen = of_prompts(pairs, _trained_prompts(run), inside=False)
        if len(unseen):
            return first_pairs(unseen, count)
    except DataError as error:
        why = str(error)
    raise DataError(
        f"{config.data} has no pairs that the run {run.name!r} was not trained on ({why}). Set "
        "held_out in common to the number of pairs to keep out of training."
    )


def _trained_prompts(run: Run) -> set[str]:
    return {prompt_digest(turns) for turns in run.pairs(["prompt"])["prompt"]}


def _config_of(run: Run, **changes: Any) -> TrainConfig:
    known = TrainConfig.model_fields
    config = {name: value for name, value in run.info["config"].items() if name in known}
    return TrainConfig(**{**config, **changes})


def labelled_by_one(pairs: Pairs, seed: int) -> Pairs:
    """The pairs with the labels of one simulated annotator, who errs, in place of the true ones."""
    return mark_oracle_states(label_by_annotator(pairs, seed))


def with_votes(pairs: Pairs, seed: int, annotators: int = 4) -> Pairs:
    """The pairs with simulated votes, labelled by the majority; level votes go by a hash.

    The same rule as `load_pairs("multipref")`. Pairs whose majority contradicts the label that
    they had are marked as flipped.
    """
    voted = simulate_votes(pairs, annotators, seed)

    def by_majority(batch: pa.Table, _: int) -> pa.Table:
        wanted = []
        for pair_id, votes in zip(
            batch["pair_id"].to_pylist(), batch["votes"].to_pylist(), strict=True
        ):
            lead = votes.count("chosen") - votes.count("rejected")
            wanted.append(lead < 0 or (lead == 0 and uniform("level votes", seed, pair_id) < 0.5))
        return reverse(batch, pd.Series(wanted, dtype=bool).to_numpy())

    return voted.map(by_majority)


def corrupted_pairs(run: Run, **changes: Any) -> Pairs:
    """The pairs that a run like this one would train on with other parameters, as tie_rate=0.3."""
    changed = _config_of(run, **changes)
    policy, tokenizer = load_policy(changed.model)
    return training_pairs(changed, policy, tokenizer, Progress(run))

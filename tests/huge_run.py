"""Write a run as large as asked for, in the shape that training writes: `python -m tests.huge_run`.

The full size is 1,000,000 pairs and 10,000,000 visits; the tests use a smaller one. Each epoch
visits every pair once, in files of 16 steps, as `engine.visits` writes them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plc_core.engine.config import TrainConfig
from plc_core.runs import PAIRS_A_GROUP
from plc_core.runs.visit_files import VISITS_SCHEMA
from plc_core.storage.files import write_json
from plc_core.storage.identity import origin_of
from plc_core.storage.seals import seal_parquet
from tests.fake_run import PAIRS_SCHEMA, fake_info, fake_status

STEPS_A_FILE = 16
SOURCES = ("ultrachat", "sharegpt", "evol_instruct", "flan", "false_qa")
_SENTENCES = 20_000
_BATCH = 50_000


def write_huge_run(
    root: Path,
    name: str,
    *,
    pairs: int = 1_000_000,
    epochs: int = 10,
    batch: int = 64,
    sentences: int = 10,
    seed: int = 0,
) -> Path:
    """Write `root/name` and return it; an answer has `sentences` sentences of 100 characters."""
    rng = np.random.default_rng(seed)
    path = root / name
    (path / "visits").mkdir(parents=True)
    ids = [f"{number:016x}" for number in rng.permutation(pairs).astype(np.uint64) * 0x9E3779B9]
    gap = np.round(np.abs(rng.normal(0, 2, pairs)) * 4) / 4
    flipped = rng.random(pairs) < 0.3
    settings = TrainConfig(
        name=name,
        runs_dir=str(root),
        num_pairs=pairs,
        flip_rate=0.3,
        batch_pairs=batch,
        pairs_per_forward=batch,
        epochs=epochs,
        seed=seed,
    )
    write_json(path / "run.json", fake_info(settings, pairs, int(flipped.sum())))
    with pq.ParquetWriter(path / "pairs.parquet", PAIRS_SCHEMA, compression="zstd") as writer:
        for table in _pairs(rng, ids, gap, flipped, sentences):
            writer.write_table(table, row_group_size=PAIRS_A_GROUP)
    total = -(-pairs // batch) * epochs
    signal = np.where(flipped, -gap, gap) * 0.6 + rng.normal(0, 0.6, pairs)
    metrics = _visits(rng, path / "visits", np.asarray(ids), signal, epochs, batch)
    pq.write_table(pa.Table.from_pandas(metrics, preserve_index=False), path / "metrics.parquet")
    for table in path.rglob("*.parquet"):
        seal_parquet(table, origin_of(table))
    write_json(path / "status.json", fake_status("done", total, total))
    return path


def _pairs(
    rng: np.random.Generator, ids: list[str], gap: np.ndarray, flipped: np.ndarray, length: int
) -> Iterator[pa.Table]:
    words = ["".join(rng.choice(list("etaoinshrdlu"), rng.integers(2, 9))) for _ in range(3000)]
    pool = pa.array([" ".join(rng.choice(words, 17)) + ". " for _ in range(_SENTENCES)])

    def text(rows: int, count: int) -> pa.Array:
        parts = [pool.take(pa.array(rng.integers(0, _SENTENCES, rows))) for _ in range(count)]
        return pc.binary_join_element_wise(*parts, "")

    for start in range(0, len(ids), _BATCH):
        part = slice(start, min(start + _BATCH, len(ids)))
        rows = part.stop - part.start
        low = rng.normal(5, 2, rows).round(2)
        high, swapped = low + gap[part], flipped[part]
        turns = pa.StructArray.from_arrays(
            [pa.array(["user"] * rows), text(rows, max(1, length // 2))], ["role", "content"]
        )
        columns = {
            "pair_id": pa.array(ids[part]),
            "prompt": pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32), turns),
            "chosen": text(rows, length),
            "rejected": text(rows, length),
            "score_chosen": pa.array(np.where(swapped, low, high)),
            "score_rejected": pa.array(np.where(swapped, high, low)),
            "source": pa.array(np.asarray(SOURCES)[rng.integers(0, len(SOURCES), rows)]),
            "split": pa.array(["train"] * rows),
            "flipped": pa.array(swapped),
            "oracle_state": pa.nulls(rows, pa.string()),
            "metadata": pa.array(["{}"] * rows),
        }
        yield pa.table(columns, schema=PAIRS_SCHEMA)


def _visits(
    rng: np.random.Generator,
    folder: Path,
    ids: np.ndarray,
    signal: np.ndarray,
    epochs: int,
    batch: int,
) -> pd.DataFrame:
    """Write the visits epoch by epoch; the metrics of all steps."""
    steps = -(-len(ids) // batch)
    total = steps * epochs
    rows = []
    for epoch in range(epochs):
        order = rng.permutation(len(ids))
        step = np.arange(len(ids)) // batch + epoch * steps
        values = _values(rng, signal[order], step / total)
        columns = {
            "pair_id": ids[order],
            "step": step.astype(np.int32),
            "epoch": (step / steps).astype(np.float32),
        } | values
        table = pa.table(columns, schema=VISITS_SCHEMA)
        visits_a_file = batch * STEPS_A_FILE
        for start in range(0, len(table), visits_a_file):
            part = table.slice(start, visits_a_file)
            first, last = part["step"][0].as_py(), part["step"][len(part) - 1].as_py()
            pq.write_table(part, folder / f"{first:08d}-{last:08d}.parquet", compression="zstd")
        rows.append(_metrics(step, values, total))
    return pd.concat(rows, ignore_index=True)


def _values(
    rng: np.random.Generator, signal: np.ndarray, progress: np.ndarray
) -> dict[str, np.ndarray]:
    margin = (signal + rng.normal(0, 0.5, len(signal))) * (0.05 + progress)
    z = (margin - 0.1 * progress) / (0.05 + progress)
    # The aggressive recipe: prior (0.80, 0.08, 0.12), temperatures 0.55 and 1.15.
    energy = np.log([0.80, 0.08, 0.12]) + np.stack([z / 0.55, -z / 0.55, -np.abs(z) / 1.15], 1)
    q = np.exp(energy - energy.max(1, keepdims=True))
    q /= q.sum(1, keepdims=True)
    confidence = np.clip((q.max(1) - 1 / 3) / (2 / 3), 0, None) ** 0.8
    named = {
        "margin": margin,
        "z": z,
        "q_clean": q[:, 0],
        "q_flip": q[:, 1],
        "q_tie": q[:, 2],
        "confidence": confidence,
        "weight": 0.85 * np.clip((progress - 0.07) / 0.93, 0, 1) * confidence,
        "policy_chosen": -40 + margin,
        "policy_rejected": np.full(len(z), -41.0),
        "reference_chosen": np.full(len(z), -40.0),
        "reference_rejected": np.full(len(z), -41.0),
        "p_flip": 1 / (1 + np.exp(1.4 + 1.5 * z)),
    }
    return {name: column.astype(np.float32) for name, column in named.items()}


def _metrics(step: np.ndarray, values: dict[str, np.ndarray], total: int) -> pd.DataFrame:
    names = ["margin", "weight", "q_clean", "q_flip", "q_tie"]
    groups = pd.DataFrame({name: values[name] for name in names}).groupby(step)
    mean, deviation = groups.mean(), groups["margin"].std(ddof=0)
    share = mean.index.to_numpy() / total
    return pd.DataFrame(
        {
            "step": mean.index.to_numpy(),
            "epoch": share,
            "loss": 0.69 - 0.2 * share,
            "margin_mean": mean["margin"].to_numpy(),
            "margin_std": deviation.to_numpy(),
            "accuracy": 0.6,
            "weight_mean": mean["weight"].to_numpy(),
            **{name: mean[name].to_numpy() for name in ("q_clean", "q_flip", "q_tie")},
            "ema_mean": mean["margin"].to_numpy(),
            "ema_std": deviation.to_numpy(),
            "gamma": 0.85 * np.clip((share - 0.07) / 0.93, 0, 1),
            "learning_rate": 5e-4 * (1 - share),
            "grad_norm": 1.0,
            "seconds": 0.2,
            "pairs_per_second": 50.0,
        }
    )


def main() -> None:
    """Write a huge run from the command line."""
    parser = argparse.ArgumentParser(description="Write a huge synthetic run.")
    parser.add_argument("root", type=Path)
    parser.add_argument("--name", default="huge")
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    write_huge_run(
        options.root,
        options.name,
        pairs=options.pairs,
        epochs=options.epochs,
        batch=options.batch,
    )


if __name__ == "__main__":
    main()

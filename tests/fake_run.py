"""Write a small synthetic run folder, seeded, in exactly the shape that training writes."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from plc_core.data.rules import FINDINGS
from plc_core.engine.config import TrainConfig
from plc_core.runs import PAIRS_A_GROUP
from plc_core.runs.visit_files import VISITS_SCHEMA
from plc_core.storage.files import write_json, write_table

PAIRS_SCHEMA = pa.schema(
    [
        ("pair_id", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("chosen", pa.string()),
        ("rejected", pa.string()),
        ("score_chosen", pa.float64()),
        ("score_rejected", pa.float64()),
        ("source", pa.string()),
        ("split", pa.string()),
        ("flipped", pa.bool_()),
        ("oracle_state", pa.string()),
        ("metadata", pa.string()),
    ]
)

VERSIONS = (
    *("python", "plc-core", "torch", "transformers", "trl"),
    *("peft", "accelerate", "datasets", "pandas", "numpy"),
)

NASTY_TEXTS = (
    ("", ""),
    ("same", "same"),
    ("<script>document.title='owned'</script>", "<b>bold</b> & <img src=x onerror=alert(1)>"),
    ("**stars** _under_ # head\n- item", "$\\frac{a}{b}$ and $x$ costs 5$ :red[no]"),
    ("a NUL \0 inside", "an escape \x1b[31m and a bell \a"),
    ("😀😀😀", "\u200bשלום\u200f \u202eلا"),
    ("one\r\ntwo\r\n", "one\ntwo\n"),
    ("```python\nprint('</pre>')\n```", "   \n\t "),
    ("word " * 8000, "x"),
)


def write_fake_run(
    root: Path,
    name: str,
    *,
    pairs: int = 200,
    epochs: int = 1,
    batch: int = 10,
    oracle: bool = True,
    votes: bool = False,
    ties: int = 0,
    posterior: bool = True,
    scores: bool = True,
    flip_rate: float = 0.3,
    state: str = "done",
    seed: int = 0,
    sources: tuple[str, ...] = ("world",),
    texts: tuple[tuple[str, str], ...] = (),
    **config: Any,
) -> Path:
    """Write `root/name` and return it; `texts` are the answers of the first pairs.

    With `votes` each pair has those of four people; the first `ties` pairs are injected ties;
    without `posterior` it is of a version that recorded neither p_flip nor the noise rate.
    `config` are further parameters of the training notebook.
    """
    settings = TrainConfig(
        name=name,
        runs_dir=str(root),
        num_pairs=pairs,
        flip_rate=flip_rate,
        batch_pairs=batch,
        pairs_per_forward=batch,
        epochs=epochs,
        seed=seed,
        **config,
    )
    rng = np.random.default_rng(seed)
    path = root / name
    (path / "visits").mkdir(parents=True)
    gap = np.round(np.abs(rng.normal(0, 2, pairs)) * 4) / 4
    flipped = rng.random(pairs) < flip_rate
    info = fake_info(settings, pairs, int(flipped.sum()))
    if state != "done":
        del info["trained_steps"], info["margin_noise"]
    write_json(path / "run.json", info)  # first: what is written below it takes its id from there
    state_of = np.where(gap <= 0.25, "tie", np.where(flipped, "flip", "clean"))
    ids = [hashlib.sha256(f"{seed}-{i}".encode()).hexdigest()[:16] for i in range(pairs)]
    low = rng.normal(0, 1, pairs).round(2)
    answers = [_answers(i, texts) for i in range(pairs)]
    table = {
        "pair_id": ids,
        "prompt": [_prompt(i) for i in range(pairs)],
        "chosen": [chosen for chosen, _ in answers],
        "rejected": [rejected for _, rejected in answers],
        "score_chosen": np.where(flipped, low, low + gap) if scores else [None] * pairs,
        "score_rejected": np.where(flipped, low + gap, low) if scores else [None] * pairs,
        "source": [sources[i % len(sources)] for i in range(pairs)],
        "split": ["train"] * pairs,
        "flipped": flipped,
        "oracle_state": state_of if oracle else [None] * pairs,
        "metadata": ["{}"] * pairs,
    }
    schema = PAIRS_SCHEMA
    if votes:
        counts = rng.integers(0, 5, (pairs, 2))
        table["votes"] = [
            (["chosen"] * a + ["tie"] * b + ["rejected"] * 4)[:4] for a, b in counts.tolist()
        ]
        schema = schema.append(pa.field("votes", pa.list_(pa.string())))
    if ties:
        table["injected_tie"] = [number < ties for number in range(pairs)]
        schema = schema.append(pa.field("injected_tie", pa.bool_()))
    write_table(path / "pairs.parquet", pa.table(table, schema=schema), PAIRS_A_GROUP)

    steps_per_epoch = -(-pairs // batch)
    total = steps_per_epoch * epochs
    kept = total if state == "done" else total // 2
    visits = _visits(rng, ids, np.where(flipped, -gap, gap), epochs, batch, total)
    visits = visits[visits["step"] < kept]
    fields = VISITS_SCHEMA
    if not posterior:
        fields = fields.remove(fields.get_field_index("p_flip"))
    for part in range(0, kept, 50):
        rows = visits[(visits["step"] >= part) & (visits["step"] < part + 50)]
        steps = rows["step"]
        write_table(
            path / "visits" / f"{steps.min():08d}-{steps.max():08d}.parquet",
            pa.Table.from_pandas(rows[fields.names], schema=fields, preserve_index=False),
        )
    metrics = _metrics(rng, visits, total, settings.beta, settings.objective == "plc")
    if not posterior:
        metrics = metrics.drop(columns=["p_flip", "noise_rate", "noise_low", "noise_high"])
    write_table(path / "metrics.parquet", pa.Table.from_pandas(metrics, preserve_index=False))
    write_table(path / "findings.parquet", FINDINGS.empty_table())
    write_json(path / "status.json", fake_status(state, kept, total))
    return path


def write_fake_report(root: Path, name: str, created: str) -> Path:
    """A report on other runs, as `make demo` leaves one, and return its folder."""
    path = root / name
    path.mkdir(parents=True)
    (path / "report.html").write_text("<html></html>")
    info = {"schema": 1, "name": name, "created": created, "kind": "analysis"}
    write_json(path / "run.json", info | {"config": {"name": name, "runs": ["a", "b"]}})
    write_json(
        path / "status.json", {"heartbeat": created, "state": "done", "reason": None, "by": None}
    )
    return path


def write_fake_answers(
    path: Path, prompts: int = 30, seed: int = 0, kl: float | None = None, lead: float = 0
) -> None:
    """Answers of a run and of its start to `prompts` prompts, and rewards for them.

    With a `kl` the log-probs of its answers are kept; rewards of the run are `lead` higher.
    """
    rng = np.random.default_rng(seed)
    rows = [
        {"prompt_id": f"{number:016x}", "policy": policy, "decoding": decoding}
        for policy in ("reference", "trained")
        for decoding in ("greedy", "sampled")
        for number in range(prompts)
    ]
    answers = pd.DataFrame(rows).assign(
        prompt=[f"prompt <b>{row['prompt_id']}</b>" for row in rows],
        response=[f"{path.name} answers as {row['policy']} $x$ **b**" for row in rows],
    )
    rewards = pd.DataFrame(rows).assign(reward=rng.normal(0, 1, len(rows)).round(1))
    rewards.loc[rewards["policy"] == "trained", "reward"] += lead
    if kl is not None:
        answers = answers.assign(reference_logp=-9.0, policy_logp=kl - 9.0)
    for folder, name, table in (
        ("generations", "world", answers),
        ("judgements", "gold-world", rewards),
    ):
        (path / folder).mkdir()
        content = pa.Table.from_pandas(table, preserve_index=False)
        write_table(path / folder / f"{name}.parquet", content)


def change_json(path: Path, **changes: Any) -> None:
    """Change some fields of a JSON file."""
    write_json(path, json.loads(path.read_text()) | changes)


def write_broken_runs(root: Path) -> None:
    """Four folders that cannot be opened: empty, half-written, unknown schema, no object."""
    (root / "empty").mkdir(parents=True)
    (root / "half").mkdir()
    (root / "half" / "run.json").write_text('{"schema": 1, "name": "ha')
    (root / "newer").mkdir()
    (root / "newer" / "run.json").write_text(json.dumps({"schema": 99, "name": "newer"}))
    (root / "listed").mkdir()
    (root / "listed" / "run.json").write_text("[]")


def _answers(number: int, texts: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    if number < len(texts):
        return texts[number]
    return (
        f"its size is tiny . its colour is red . hope this helps . answer {number}",
        f"um , its colour is red . its size is large . my cousin says hello . answer {number}",
    )


def _prompt(number: int) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": "Answer in the requested order."},
        {
            "role": "user",
            "content": f"describe kettle {number} : cover size , colour . skip weight",
        },
    ]


def _visits(
    rng: np.random.Generator,
    ids: list[str],
    signal: np.ndarray,
    epochs: int,
    batch: int,
    total: int,
) -> pd.DataFrame:
    order = np.concatenate([rng.permutation(len(ids)) for _ in range(epochs)])
    steps_per_epoch = total // epochs
    within = np.tile(np.arange(len(ids)) // batch, epochs)
    epoch = np.repeat(np.arange(epochs), len(ids))
    step = within + epoch * steps_per_epoch
    margin = (0.4 * signal[order] + rng.normal(0, 0.8, len(order))) * (0.2 + step / total)
    z = (margin - margin.mean()) / margin.std()
    # The aggressive recipe: prior (0.80, 0.08, 0.12), temperatures 0.55 and 1.15.
    energy = np.log([0.80, 0.08, 0.12]) + np.stack([z / 0.55, -z / 0.55, -np.abs(z) / 1.15], 1)
    q = np.exp(energy - energy.max(1, keepdims=True))
    q /= q.sum(1, keepdims=True)
    confidence = np.clip((q.max(1) - 1 / 3) / (2 / 3), 0, None) ** 0.8
    return pd.DataFrame(
        {
            "pair_id": np.asarray(ids)[order],
            "step": step.astype(np.int32),
            "epoch": epoch + within / steps_per_epoch,
            "margin": margin,
            "z": z,
            "q_clean": q[:, 0],
            "q_flip": q[:, 1],
            "q_tie": q[:, 2],
            "confidence": confidence,
            "weight": 0.85 * step / total * confidence,
            "policy_chosen": -40 + margin,
            "policy_rejected": -41.0,
            "reference_chosen": -40.0,
            "reference_rejected": -41.0,
            "p_flip": 1 / (1 + np.exp(1.4 + 1.5 * z)),
        }
    )


def _metrics(
    rng: np.random.Generator, visits: pd.DataFrame, total: int, beta: float, corrects: bool
) -> pd.DataFrame:
    names = ["margin", "weight", "q_clean", "q_flip", "q_tie", "p_flip"]
    groups = visits.groupby("step")
    mean, deviation = groups[names].mean(), groups["margin"].std(ddof=0)
    step = mean.index.to_series().astype(np.int64)
    share = step / total
    reward = {
        side: beta
        * (groups[f"policy_{side}"].mean() - groups[f"reference_{side}"].mean()).astype(float)
        for side in ("chosen", "rejected")
    }
    gamma = {"gamma": (0.85 * (share - 0.07) / 0.93).clip(lower=0)} if corrects else {}
    metrics = pd.DataFrame(
        {
            "step": step,
            "epoch": groups["epoch"].first(),
            "loss": 0.69 - 0.2 * share + rng.normal(0, 0.02, len(step)),
            "margin_mean": mean["margin"],
            "margin_std": deviation,
            "accuracy": 0.6,
            "reward_chosen": reward["chosen"],
            "reward_rejected": reward["rejected"],
            "weight_mean": mean["weight"],
            **{name: mean[name] for name in ("q_clean", "q_flip", "q_tie", "p_flip")},
            "noise_rate": 0.27,
            "noise_low": 0.21,
            "noise_high": 0.33,
            "ema_mean": mean["margin"].expanding().mean(),
            "ema_std": deviation.expanding().mean(),
            "floor_bound": 0.0,
            **gamma,
            "learning_rate": 5e-4 * (1 - share),
            "grad_norm": 1.0,
            "seconds": 0.2,
            "pairs_per_second": 50.0,
        }
    )
    return metrics.reset_index(drop=True)


def fake_info(config: TrainConfig, pairs: int = 200, flipped: int = 60) -> dict[str, Any]:
    """The run.json of a finished training run, with the keys and types of a real one."""
    return {
        "schema": 1,
        "name": config.name,
        "created": f"2026-01-{config.seed % 28 + 1:02d}T10:00:00+00:00",
        "checksums": "crc32",
        "run_id": hashlib.sha256(f"{config.name}-{config.seed}".encode()).hexdigest()[:16],
        "kind": "training",
        "config": config.model_dump(),
        "data": {
            "source": config.data,
            "origin": {"source": config.data},
            "fingerprint": "f" * 16,
            "rows_read": pairs + 1,
            "rows": pairs,
            "rules": {
                "empty-answer": {"rows": 1, "action": "drop"},
                "truncated": {"rows": 2, "action": "keep"},
            },
            "max_length": config.max_length,
            "tokens": {"pairs": pairs, "truncated": 2, "identical": 0},
            "tokens_in_words": [f"2 of {pairs} pairs are longer than 1024 tokens and were cut."],
            "flipped": flipped,
            "injected_tie": 0,
            "warm": 0,
        },
        "reference": {
            "model": "a" * 16,
            "precision": "torch.float32",
            "attention": "sdpa",
            "layout": "packed prompt|first|second",
            "computed": pairs,
            "reused": 0,
            "grouping": "a" * 16,
        },
        "calibration_order": "update-first",
        "versions": dict.fromkeys(VERSIONS, "1.2.3"),
        "git": {"commit": "0" * 40, "changed": False},
        "machine": "Linux x86_64",
        "hardware": {"device": "CPU", "processes": 1, "threads": 2},
        "model": {"name": config.model, "parameters": 354_304, "trainable": 354_304},
        "trained_steps": -(-pairs // config.batch_pairs) * int(config.epochs),
        "margin_noise": {"step_0_std": 1e-7, "last_ema_std": 0.5},
        "alerts": [],
    }


def fake_status(state: str, step: int, total: int) -> dict[str, Any]:
    """The status.json of a training run that was in training when it came to `state`."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "heartbeat": now,
        "state": state,
        "reason": "OutOfMemoryError: tried to allocate 2 GiB" if state == "failed" else None,
        "by": None,
        "phase": "training",
        "done": step,
        "total": total,
        "started": now,
        "finished": now if state in {"done", "failed"} else None,
        "pid": os.getpid(),
        "host": "elsewhere" if state == "running" else socket.gethostname(),
        "step": step,
        "total_steps": total,
    }


def still_training(path: Path) -> Path:
    """The run, whose record no longer says that training came to its end."""
    info = json.loads((path / "run.json").read_text())
    del info["trained_steps"]
    write_json(path / "run.json", info)
    return path

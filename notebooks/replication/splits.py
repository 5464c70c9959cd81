"""The study's pairs, in parts that share no prompt, as files in the cache.

Files, so that every job is a plain training run that `notebooks/01_train.ipynb` can repeat.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from notebooks.replication.plan import PARTS, ReplicationConfig
from plc_core.data import Pairs, load_pairs, pairs_from_rows, simulate_votes
from plc_core.data.world import RESPONSE_TOKENS, gold_reward
from plc_core.data.world.prompts import held_out_prompts
from plc_core.engine.models.load import load_policy
from plc_core.engine.sampling import generate_responses
from plc_core.engine.tokens.tokenized import prompt_ids
from plc_core.storage.cache import cached_folder
from plc_core.storage.files import RunError, read_json, write_json
from plc_core.storage.paths import cache_dir, project_path

_WORLD_SEED = 20_260_102


class Material(NamedTuple):
    """Where the pairs lie, and what the split left of them."""

    files: dict[str, str]  # train-all, -scored, -helpful, -fresh, tie-base, ties, select, …
    counts: dict[str, Any]
    prompts: list[list[dict[str, str]]]  # to answer, as messages


def prepare(study: ReplicationConfig) -> Material:
    """Split the pairs by prompt, once for these settings and files.

    The part of a prompt follows from a hash of its first user turn and `split_seed`; a prompt with
    an exact tie is always in train, where those ties are wanted, and one that is among the voted
    pairs or the benchmark prompts in no part. Pairs of level scores stand in train alone, as ties
    say nothing about accuracy.

    Raises:
        RunError: where two parts share a prompt, which must not be.
    """
    if study.model == "world":
        return _world(study)
    paths = {name: getattr(study, name) for name in ("scored", "helpful", "votes", "prompts")}
    found = {name: project_path(path) for name, path in paths.items() if path is not None}
    settings = {
        "files": {name: _digest(path) for name, path in found.items()},
        "split": [study.split_seed, study.shares, study.most_pairs, study.responses],
        "layout": 2,  # of the files in the folder
    }
    prompts = _prompts(found.get("prompts"), study.responses)
    folder = cached_folder(
        _folder(study.name, settings), lambda new: _split(study, found, new, prompts)
    )
    counts = read_json(folder / "counts.json")
    return Material({p.stem: str(p) for p in folder.glob("*.jsonl")}, counts, prompts)


def _split(
    study: ReplicationConfig, found: Mapping[str, Path], folder: Path, prompts: list[Any]
) -> None:
    rows: list[dict[str, Any]] = []
    for name in ("scored", "helpful"):
        rows += [row | {"mixture": name} for row in _rows(load_pairs(found[name], split=None))]
    votes = _rows(load_pairs(found["votes"], split=None)) if "votes" in found else []
    closed = {_group(row["prompt"]) for row in votes} | {_group(turns) for turns in prompts}
    tied = {_group(row["prompt"]) for row in rows if _is_tie(row)}
    parts: dict[str, list[dict[str, Any]]] = {part: [] for part in PARTS}
    left_out: Counter[str] = Counter()
    for row in rows:
        group = _group(row["prompt"])
        if group in closed:
            left_out["prompt among votes or benchmark"] += 1
            continue
        part = "train" if group in tied else _part(study, group)
        parts[part].append(row)
    for part, name in ((p, q) for p in PARTS for q in PARTS if p < q):
        both = {_group(r["prompt"]) for r in parts[part]} & {
            _group(r["prompt"]) for r in parts[name]
        }
        if both:
            raise RunError(f"The parts {part} and {name} share {len(both)} prompts.")
    for part, members in parts.items():
        kept = _first(members, study.most_pairs.get(part), study.split_seed)
        left_out[f"more than most_pairs of {part}"] += len(members) - len(kept)
        parts[part] = kept
    train = parts.pop("train")
    files = {"train-all": train, "votes": _first(votes, study.most_pairs.get("votes"), 0)}
    files |= {f"train-{m}": [r for r in train if r["mixture"] == m] for m in ("scored", "helpful")}
    files |= {"ties": [r for r in train if _is_tie(r)]}
    scored = [r for r in files["train-scored"] if not _is_tie(r)]
    files |= {"tie-base": _first(scored, study.most_pairs.get("tie-base"), study.split_seed)}
    # What was found on the part train is shown on pairs that no other job trains on.
    files |= {"train-fresh": parts["select"] + parts["reward"]}
    files |= parts
    _write(folder, files, {"left_out": left_out, "prompts": len(prompts)})


def _world(study: ReplicationConfig) -> Material:
    """Pairs of held-out prompts of the embedded world; its training pairs are drawn by each run."""
    wanted = study.most_pairs.get("test", 2000)
    settings = {"world": wanted, "prompts": study.responses}
    prompts = [[{"role": "user", "content": p.text}] for p in held_out_prompts(study.responses)]

    def write(folder: Path) -> None:
        rows = _world_pairs(wanted)
        voted = simulate_votes(pairs_from_rows(rows, source="world"), seed=_WORLD_SEED)
        clear = [row for row in rows if not _is_tie(row)]
        _write(folder, {"test": clear, "votes": _rows(voted)}, {"prompts": len(prompts)})

    folder = cached_folder(_folder(study.name, settings), write)
    counts = read_json(folder / "counts.json")
    return Material({p.stem: str(p) for p in folder.glob("*.jsonl")}, counts, prompts)


def _world_pairs(count: int) -> list[dict[str, Any]]:
    policy, tokenizer = load_policy("world")
    prompts = held_out_prompts(count)
    turns = [[{"role": "user", "content": prompt.text}] for prompt in prompts]
    ids = [prompt_ids(tokenizer, t) for t in turns]
    first, second = (
        generate_responses(policy, tokenizer, ids, "sampled", RESPONSE_TOKENS, _WORLD_SEED + i)
        for i in range(2)
    )
    rows = []
    for prompt, messages, *answers in zip(prompts, turns, first, second, strict=True):
        if answers[0].text == answers[1].text:
            continue
        scored = [(gold_reward(prompt, a.text, a.finished), a.text) for a in answers]
        (high, chosen), (low, rejected) = sorted(scored, key=lambda x: -x[0])
        rows.append(
            {"prompt": messages, "chosen": chosen, "rejected": rejected, "source": "world",
             "score_chosen": high, "score_rejected": low}
        )  # fmt: skip
    return rows


def _rows(pairs: Pairs) -> list[dict[str, Any]]:
    names = [
        "prompt", "chosen", "rejected", "score_chosen", "score_rejected", "votes", "source",
    ]  # fmt: skip
    return [{name: row[name] for name in names} for row in pairs.dataset]


def _write(folder: Path, files: Mapping[str, Sequence[Any]], counts: dict[str, Any]) -> None:
    for name, rows in files.items():
        lines = (
            json.dumps({k: v for k, v in row.items() if v is not None and k != "mixture"})
            for row in rows
        )
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    sources = {name: Counter(row["source"] for row in rows) for name, rows in files.items()}
    write_json(folder / "counts.json", counts | {"pairs": sources})


def _folder(name: str, settings: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "study" / f"{name}-{digest}"


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from None


def _group(turns: Sequence[Mapping[str, str]]) -> str:
    """The first user turn without case and spacing: dialogues that begin alike are one prompt."""
    first = next((turn["content"] for turn in turns if turn["role"] == "user"), "")
    return re.sub(r"\W+", " ", first).casefold().strip()


def _part(study: ReplicationConfig, group: str) -> str:
    digest = hashlib.sha256(f"{study.split_seed} {group}".encode()).digest()
    place = int.from_bytes(digest[:8]) / 2**64
    ends = np.cumsum([study.shares[part] for part in PARTS])
    return PARTS[min(int(np.searchsorted(ends, place, side="right")), len(PARTS) - 1)]


def _is_tie(row: Mapping[str, Any]) -> bool:
    return row["score_chosen"] is not None and row["score_chosen"] == row["score_rejected"]


def _first(rows: list[dict[str, Any]], most: int | None, seed: int) -> list[dict[str, Any]]:
    """At most `most` of the rows, those of the smallest hash, in their order."""
    if most is None or len(rows) <= most:
        return rows
    keys = [
        hashlib.sha256(f"{seed} {row['chosen']} {row['rejected']}".encode()).digest()
        for row in rows
    ]
    kept = set(sorted(range(len(rows)), key=keys.__getitem__)[:most])
    return [row for i, row in enumerate(rows) if i in kept]


def _prompts(path: Path | None, count: int) -> list[list[dict[str, str]]]:
    """The first `count` benchmark prompts of vicuna_bench and then of arena_hard, as messages."""
    if path is None or not count:
        return []
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    order = ("vicuna_bench", "arena_hard_v0.1")
    rows = [row for name in order for row in rows if row["benchmark"] == name]
    return [[{"role": "user", "content": row["prompt"][0]}] for row in rows[:count]]

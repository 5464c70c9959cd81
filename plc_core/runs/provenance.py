"""What a run was made with: versions, code, machine, and its pairs in words."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = [
    "plc-core",
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "pandas",
    "numpy",
]


def provenance() -> dict[str, Any]:
    """The fields `versions`, `git` and `machine` of run.json."""
    return {
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in _PACKAGES},
        "git": _git(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    def ask(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def describe_data(data: Mapping[str, Any]) -> str:
    """What run.json says of its pairs, for a person: kept, left out, marked, corrupted, cut."""
    left_out = _counts(data, "drop")
    changed = {
        "reversed labels": data["flipped"],
        "injected ties": data.get("injected_tie", 0),
        "warm": data.get("warm", 0),
    }
    return " ".join(
        [
            f"{data['rows_read']:,} rows read, {data['rows']:,} pairs kept.",
            *_list("Left out", left_out),
            *_list("Marked", _counts(data, "keep")),
            *_list("Corrupted", {name: n for name, n in changed.items() if n}),
            *data["tokens_in_words"],
        ]
    )


def _counts(data: Mapping[str, Any], action: str) -> dict[str, int]:
    rules = data["rules"].items()
    return {name: rule["rows"] for name, rule in rules if rule["action"] == action}


def _list(what: str, counts: Mapping[str, int]) -> list[str]:
    listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return [f"{what}: {listed}."] if listed else []

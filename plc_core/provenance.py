"""What a run was made with: versions, code, machine."""

from __future__ import annotations

import platform
import subprocess
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

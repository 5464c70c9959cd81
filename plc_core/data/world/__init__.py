"""The embedded controlled world: checklist prompts, an imperfect writer and an exact gold reward.

It is small enough to train on two CPU cores in a minute and knows the truth about every pair:
which answer is better, by how much, and whether the label was flipped. `CHECKPOINT` holds the
supervised model whose samples become preference pairs; `python -m plc_core.engine.world_sft`
makes it again.
"""

import hashlib
from pathlib import Path

from plc_core.data.world.language import (
    FAMILIES,
    VOCABULARY,
    WorldPrompt,
    parse_prompt,
    sample_prompt,
    sample_prompts,
)
from plc_core.data.world.reward import gold_reward, max_reward
from plc_core.data.world.writer import write_response

WORLD = "world"
"""What the embedded world is called where a data set, a benchmark or a model is named."""

CHECKPOINT: Path = Path(__file__).parent / "checkpoint"

RESPONSE_TOKENS = 64
"""Where the generation of a response is cut off, the terminator included."""


def world_fingerprint() -> str:
    """16 hex digits of the language and the reward: what was made with others is not reused."""
    folder = Path(__file__).parent
    sources = (folder / name for name in ("language.py", "prompts.py", "reward.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


__all__ = [
    "CHECKPOINT",
    "FAMILIES",
    "RESPONSE_TOKENS",
    "VOCABULARY",
    "WORLD",
    "WorldPrompt",
    "gold_reward",
    "max_reward",
    "parse_prompt",
    "sample_prompt",
    "sample_prompts",
    "world_fingerprint",
    "write_response",
]

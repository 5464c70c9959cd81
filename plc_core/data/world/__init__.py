"""The embedded controlled world: checklist prompts, an imperfect writer and an exact gold reward.

It is small enough to train on two CPU cores in a minute and knows the truth about every pair:
which answer is better, by how much, and whether the label was flipped. `CHECKPOINT` holds the
supervised model whose samples become preference pairs; `python -m plc_core.engine.world_sft`
makes it again.
"""

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

CHECKPOINT: Path = Path(__file__).parent / "checkpoint"

__all__ = [
    "CHECKPOINT",
    "FAMILIES",
    "VOCABULARY",
    "WorldPrompt",
    "gold_reward",
    "max_reward",
    "parse_prompt",
    "sample_prompt",
    "sample_prompts",
    "write_response",
]

"""What an answer is worth: an open reward model, a language model as judge, the world's gold."""

from plc_core.evaluation.judges.judgements import (
    JudgeWarning,
    compare_generations,
    score_generations,
)
from plc_core.evaluation.judges.language_model import LLMJudge
from plc_core.evaluation.judges.named import GoldJudge
from plc_core.evaluation.judges.reward_model import RewardModelJudge

__all__ = [
    "GoldJudge",
    "JudgeWarning",
    "LLMJudge",
    "RewardModelJudge",
    "compare_generations",
    "score_generations",
]

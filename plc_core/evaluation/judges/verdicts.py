"""What a language model is asked as a judge, and how its verdict is read: strictly."""

from __future__ import annotations

import re
from collections.abc import Sequence

from plc_core.data.dialogues import Turn

SINGLE = (
    "Please act as an impartial judge and evaluate the quality of the response provided by an AI "
    "assistant to the user question displayed below. Your evaluation should consider factors such "
    "as the helpfulness, relevance, accuracy, depth, creativity, and level of detail of the "
    "response. Begin your evaluation by providing a short explanation. Be as objective as "
    "possible. After providing your explanation, please rate the response on a scale of 1 to 10 by "
    "emitting the word Rating followed by a bracketed score such as [[5]]."
)
"""The system prompt of the paper's single-answer judge (figure single-answer-judge-prompt)."""

PAIRWISE = (
    "Please act as an impartial judge and evaluate the quality of the responses provided by two AI "
    "assistants to the user question displayed below. Choose the assistant that follows the user's "
    "instructions and answers the user's question better. Your evaluation should consider factors "
    "such as the helpfulness, relevance, accuracy, depth, creativity, and level of detail of the "
    "responses. Begin your evaluation by comparing the two responses and provide a short "
    "explanation. Do not let the order in which the responses are presented, their length, or the "
    "names of the assistants influence your evaluation. Be as objective as possible. After "
    "providing your explanation, output your final verdict by strictly following this format: "
    "[[A]] if assistant A is better, [[B]] if assistant B is better, and [[C]] for a tie."
)
"""The paper prints no pairwise prompt: this one has the single prompt's criteria and the form of
Zheng et al. (2023), figure 5."""

_BRACKETS = re.compile(r"\[\[([^\[\]]*)\]\]")
_SCORE = re.compile(r"\d{1,2}(\.\d+)?")
_PLACES = {"A": "A", "B": "B", "C": "tie"}


def single_messages(conversation: Sequence[Turn], response: str) -> list[Turn]:
    """What a judge is asked about one answer. Of a dialogue, the question is all of it."""
    text = (
        f"[Question]\n{_asked(conversation)}\n[The Start of Assistant's Answer]\n{response}\n"
        "[The End of Assistant's Answer]"
    )
    return [{"role": "system", "content": SINGLE}, {"role": "user", "content": text}]


def pairwise_messages(
    first: tuple[Sequence[Turn], str], second: tuple[Sequence[Turn], str]
) -> list[Turn]:
    """What a judge is asked about two answers, A and B.

    Args:
        first: the conversation of A and the answer that ends it.
        second: the same of B. In a later turn the two conversations differ by the assistants' own
            earlier answers, and both are shown whole.
    """
    if list(first[0]) == list(second[0]):
        head, what = f"[User Question]\n{_asked(first[0])}\n", "Answer"
        shown = [first[1], second[1]]
    else:
        head, what = "", "Conversation"
        shown = [
            _transcript([*turns, {"role": "assistant", "content": said}])
            for turns, said in (first, second)
        ]
    blocks = [
        f"[The Start of Assistant {name}'s {what}]\n{text}\n[The End of Assistant {name}'s {what}]"
        for name, text in zip("AB", shown, strict=True)
    ]
    text = head + "\n".join(blocks)
    return [{"role": "system", "content": PAIRWISE}, {"role": "user", "content": text}]


def read_score(text: str) -> float | None:
    """The last well-formed rating from 1 to 10 in a judge's reply, as [[7]]; None without one."""
    scores = [float(found) for found in _BRACKETS.findall(text) if _SCORE.fullmatch(found)]
    return next((score for score in reversed(scores) if 1 <= score <= 10), None)


def read_place(text: str) -> str | None:
    """The last well-formed verdict in a judge's reply: "A", "B" or "tie"; None without one."""
    places = [_PLACES[found] for found in _BRACKETS.findall(text) if found in _PLACES]
    return places[-1] if places else None


def _asked(conversation: Sequence[Turn]) -> str:
    if len(conversation) == 1:
        return conversation[0]["content"]
    return _transcript(conversation)


def _transcript(conversation: Sequence[Turn]) -> str:
    return "\n\n".join(f"### {t['role'].capitalize()}:\n{t['content']}" for t in conversation)

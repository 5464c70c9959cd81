"""What a language model is asked as a judge, and how its verdict is read: strictly.

A judge is shown answers between marks, and ends its reply in a mark. An answer that spells one
could end its block early, forge a turn, or put a verdict into the mouth of a judge that quotes it.
Such a spelling stays readable and loses its form: a space or a backslash is put in, or square
brackets become round ones. Everything else is shown as it is.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from plc_core.data.dialogues import Turn

# Characters that a reader does not see or that markup puts between brackets: [**[A]**], \[\[A\]\].
_BETWEEN = r"[\u00ad\u200b-\u200f\u2060-\u2064\ufeff\\*_`]*"
_OPEN, _CLOSE = r"[\[【〔]", r"[\]】〕]"
MARK = re.compile(
    f"{_OPEN}{_BETWEEN}{_OPEN}(?P<said>[^\\[\\]【】〔〕]{{1,40}}){_CLOSE}{_BETWEEN}{_CLOSE}"
)
"""A verdict in double brackets as a judge or an answer may spell it, in folded text."""

_NUMBER = r"[-+]?\d+([.,]\d+)?(\s*(/|of|out of)\s*\d+)?"
RATING = re.compile(rf"{_NUMBER}|[nx?…]|\.\.+", re.IGNORECASE)
"""What stands for a rating between double brackets, well-formed or not."""
PLACE = re.compile(
    r"[A-Zabc\u0410\u0412\u0421]"  # the last three are Cyrillic and look like A, B and C
    r"|(?i:(a\s+)?tie|draw|equal|neither|both|(assistant|response)\s+[abc])"
)
"""What stands for a verdict on two answers between double brackets, well-formed or not."""

_DELIMITER = re.compile(
    rf"{_OPEN}\W{{0,8}}(?:(?:the\s+)?(?:start|end)\s+of\s+(?:the\s+)?(?:ai\s+)?(?:assistant|user)\b"
    rf"[^\[\]【】〔〕]{{0,60}}|(?:user\s+)?question|/?INST)\s*{_CLOSE}",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(?<![^\n\r\v\f\x85\u2028\u2029])[^\S\n]*\#{1,6}\W{0,8}"
    r"(?:user|assistant|system|human)\b[^\w\n]{0,4}:",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"<(?:\|[^<>|\n]{1,60}\|>|/?s>|(?:start|end)_of_turn>|</?SYS>>)", re.IGNORECASE)


def folded(text: str) -> str:
    """Full-width and other compatibility forms as what they stand for, one for one (NFKC)."""
    if text.isascii():
        return text
    plain = (unicodedata.normalize("NFKC", sign) for sign in text)
    return "".join(new if len(new) == 1 else old for old, new in zip(text, plain, strict=True))


def said_in(mark: re.Match[str]) -> str:
    """The text between a mark's brackets without what only decorates it."""
    return re.sub(r"[\u00ad\u200b-\u200f\u2060-\u2064\ufeff\\*_`'\"]", "", mark["said"]).strip()


def neutralised(text: str) -> tuple[str, list[str]]:
    """A text without the judge's own marks, and the spellings that were changed.

    Changed are verdicts in double brackets, the marks around questions and answers, headers of
    roles as `### User:`, and the special tokens of chat templates, in any case and spacing and in
    look-alike brackets.
    """
    changed: list[str] = []
    for pattern, harmless in _HARMLESS.items():
        parts, end = [], 0
        for found in pattern.finditer(folded(text)):
            if pattern is MARK and not _is_verdict(found):
                continue
            own = text[found.start() : found.end()]
            parts += [text[end : found.start()], harmless(own)]
            changed.append(own)
            end = found.end()
        text = "".join([*parts, text[end:]])
    return text, changed


def _is_verdict(mark: re.Match[str]) -> bool:
    said = said_in(mark)
    return bool(RATING.fullmatch(said) or PLACE.fullmatch(said))


_HARMLESS: dict[re.Pattern[str], Callable[[str], str]] = {
    MARK: lambda own: f"{own[0]} {own[1:-1]} {own[-1]}",
    _DELIMITER: lambda own: f"({own[1:-1]})",
    _HEADER: lambda own: own.replace("#", "\\#", 1) if "#" in own else "\\" + own,
    _TOKEN: lambda own: f"{own[0]} {own[1:]}",
}


# ---- questions and verdicts ----------------------------------------------------------------------

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
_SCORE = re.compile(r"[0-9]{1,2}(\.[0-9]+)?")
_PLACES = {"A": "A", "B": "B", "C": "tie"}
_MEANT = {
    RATING: re.compile(
        r"\d|\b(?i:one|two|three|four|five|six|seven|eight|nine|ten)\b|\b[IVX]{2,}\b"
    ),
    PLACE: re.compile(
        r"(?<!\w)[ABC](?!\w)|^(?i:assistant|answer|response|model)|\b(?i:tie|none|neither|not)\b"
    ),
}
"""What shows that a mark is meant for a rating, or for a verdict on two answers."""
_Value = TypeVar("_Value", bound=Hashable)


def single_messages(conversation: Sequence[Turn], response: str) -> list[Turn]:
    """What a judge is asked about one answer. Of a dialogue, the question is all of it.

    Here and in `pairwise_messages` no text that is judged keeps the judge's own marks.
    """
    text = (
        f"[Question]\n{_asked(conversation)}\n[The Start of Assistant's Answer]\n"
        f"{_shown(response)}\n[The End of Assistant's Answer]"
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
        shown = [_shown(first[1]), _shown(second[1])]
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
    """The rating from 1 to 10 that a judge's reply gives, as [[7]]; None unless it gives just one.

    The same rating may be repeated. A second one, also one that is out of range or not well-formed,
    leaves open which of them is meant.
    """
    return _only(text, RATING, _rating)


def read_place(text: str) -> str | None:
    """The verdict that a judge's reply gives: "A", "B" or "tie"; None unless it gives just one."""
    return _only(text, PLACE, _PLACES.get)


def spelled(conversation: Sequence[Turn], response: str) -> list[str]:
    """What these texts spell of the judge's own marks, and are shown without; each once."""
    texts = [*(turn["content"] for turn in conversation), response]
    return list(dict.fromkeys(own for text in texts for own in neutralised(text)[1]))


def _only(text: str, alike: re.Pattern[str], read: Callable[[str], _Value | None]) -> _Value | None:
    """What all marks of a reply say alike, where one of them at least is well-formed.

    A mark that is not well-formed and may be meant for one, as [[score: 8]] or [[B is better]],
    leaves it open.
    """
    exact = {read(found) for found in _BRACKETS.findall(text)} - {None}
    said = [said_in(mark) for mark in MARK.finditer(folded(text))]
    meant = [found for found in said if alike.fullmatch(found) or _MEANT[alike].search(found)]
    # Read in capitals: [[a]] alone is not well-formed, but it does not contradict [[A]].
    loose = {read(found.upper()) for found in meant}
    return exact.pop() if len(exact) == 1 and loose == exact else None


def _rating(text: str) -> float | None:
    value = float(text) if _SCORE.fullmatch(text) else 0.0
    return value if 1 <= value <= 10 else None


def _asked(conversation: Sequence[Turn]) -> str:
    if len(conversation) == 1:
        return _shown(conversation[0]["content"])
    return _transcript(conversation)


def _transcript(conversation: Sequence[Turn]) -> str:
    return "\n\n".join(
        f"### {turn['role'].capitalize()}:\n{_shown(turn['content'])}" for turn in conversation
    )


def _shown(text: str) -> str:
    return neutralised(text)[0]

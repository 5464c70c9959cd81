"""What a judged text may not say in the judge's own language, and how it is made harmless.

A judge is shown answers between marks, and ends its reply in a mark. An answer that spells one
could end its block early, forge a turn, or put a verdict into the mouth of a judge that quotes it.
Such a spelling stays readable and loses its form: a space or a backslash is put in, or square
brackets become round ones. Everything else is shown as it is.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

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

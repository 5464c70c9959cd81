"""Pair texts as safe HTML: shown literally, with the words that differ marked."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from difflib import SequenceMatcher
from html import escape
from typing import Any, NamedTuple

from plc_core.analysis.figures.style import STATE_COLOURS

MOST_WORDS = 1500
"""Longer answers are shown unmarked: comparing words takes time with the product of the lengths."""

MOST_CHARACTERS = 20_000
"""Of longer answers this much is shown at first."""

LEAST_SHARED = 0.3
"""Answers that share less of their words in order are shown unmarked: nearly all would be."""

CSS = """
.plc-text {white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate;
  max-height: 24rem; overflow-y: auto; line-height: 1.5; padding: .6rem .8rem;
  border: 1px solid rgba(128,128,128,.3); border-radius: .4rem}
.plc-text mark {background: rgba(128,128,128,.2); color: inherit; border-radius: .2rem;
  text-decoration: underline; text-decoration-thickness: 1px; text-underline-offset: 3px}
.plc-role {font-size: .8rem; opacity: .7; margin: .15rem 0 .15rem}
.plc-code {font-family: monospace; font-size: .75em; opacity: .75; border-radius: .2rem;
  border: 1px solid rgba(128,128,128,.5); padding: 0 .15rem}
.plc-line {display: flex; flex-wrap: wrap; align-items: center; gap: .15rem .9rem}
.plc-line span {font-size: .78rem; opacity: .7}
.plc-line b {font-size: 1.02rem; font-weight: 600; font-variant-numeric: tabular-nums}
.plc-q {display: flex; width: 9rem; height: .7rem; border-radius: .35rem; overflow: hidden;
  gap: 2px}
.plc-key {display: inline-block; width: .6rem; height: .6rem; border-radius: .15rem}
.plc-id {font-family: monospace; font-size: .85rem; margin-bottom: .25rem; user-select: all;
  overflow-wrap: anywhere}
.plc-prompt {max-height: 11rem; overflow-y: auto}
.plc-none {opacity: .6; font-style: italic}
.plc-truth {margin-top: .4rem}
.plc-truth summary {cursor: pointer; font-size: .8rem; opacity: .7; width: fit-content}
"""
STYLE = f"<style>{CSS}</style>"

# Characters without a shape of their own, bidirectional overrides (which could make a text read as
# another one), and lone surrogates: each is shown by its code. Joiners stay, as scripts need them.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def literal(text: str) -> str:
    """`text` as HTML that shows exactly its characters, unseen ones as small boxed codes."""
    return _UNSEEN.sub(lambda m: f'<span class="plc-code">{_code(m[0])}</span>', escape(text))


def plain(text: str) -> str:
    """`text` as Markdown that shows exactly its characters, on one line."""
    one_line = _UNSEEN.sub(lambda m: _code(m[0]), " ".join(text.split()))
    return "".join(f"\\{c}" if c in string.punctuation else c for c in one_line)


def block(html: str) -> str:
    """A scrolling box around the literal text `html`."""
    return f'<div class="plc-text" dir="auto">{html}</div>'


def turn(role: str, text: str) -> str:
    """One prompt turn: the role above its text."""
    return f'<div class="plc-role">{literal(role)}</div>{block(literal(text) or _none("empty"))}'


def prompt_turns(prompt: Any) -> str:
    """A prompt, text or messages, as its turns below each other; empty without one."""
    if isinstance(prompt, str):
        return turn("prompt", prompt)
    turns = prompt if isinstance(prompt, list) else []
    return "".join(
        turn(str(t.get("role")), str(t.get("content") or ""))
        if isinstance(t, dict)
        else turn("?", str(t))
        for t in turns
    )


def numbers_line(shown: Mapping[str, str], q: Mapping[str, float]) -> str:
    """Named numbers in a line, after a bar of the three routing weights with their values."""
    bar = "".join(
        f'<i style="width:{100 * value:.2f}%;background:{STATE_COLOURS[state]}"></i>'
        for state, value in q.items()
    )
    items = [
        f'<div><i class="plc-key" style="background:{STATE_COLOURS[state]}"></i> '
        f"<span>q_{state}</span> <b>{value:.3f}</b></div>"
        for state, value in q.items()
    ]
    items += [
        f"<div><span>{literal(name)}</span> <b>{literal(value)}</b></div>"
        for name, value in shown.items()
    ]
    said = ", ".join(f"q_{state} {value:.3f}" for state, value in q.items())
    box = f'<div class="plc-q" role="img" aria-label="{said}">{bar}</div>' if q else ""
    return f'<div class="plc-line">{box}{"".join(items)}</div>'


class Marked(NamedTuple):
    """Both answers as boxes, and a sentence that says what is marked in them or why nothing is.

    `cut` says whether an answer is shown up to `MOST_CHARACTERS` only.
    """

    chosen: str
    rejected: str
    note: str
    cut: bool = False


def marked(chosen: str | None, rejected: str | None, whole: bool = True) -> Marked:
    """Both answers; words that the other one lacks at that place are marked.

    Unless `whole`, a browser is spared what of a very long answer nobody reads.
    """
    long = any(len(text or "") > MOST_CHARACTERS for text in (chosen, rejected))
    if long and not whole:
        boxes = (block(_shortened(text)) for text in (chosen, rejected))
        return Marked(*boxes, "Too long to mark differences.", cut=True)
    unmarked = block(_plain(chosen)), block(_plain(rejected))
    if long:
        return Marked(*unmarked, "Too long to mark differences.", cut=True)
    lengths = [len((text or "").split()) for text in (chosen, rejected)]
    if not (chosen and rejected and min(lengths)):
        return Marked(*unmarked, "One answer is empty.")
    if max(lengths) > MOST_WORDS:
        return Marked(*unmarked, f"Too long to mark differences: above {MOST_WORDS:,} words.")
    left, right = _words_apart(chosen), _words_apart(rejected)
    matcher = SequenceMatcher(None, left[::2], right[::2], autojunk=False)
    if matcher.ratio() < LEAST_SHARED:
        return Marked(
            *unmarked,
            f"Too different to mark words: less than {100 * LEAST_SHARED:.0f} % are shared.",
        )
    same = matcher.get_matching_blocks()
    return Marked(
        block(_join(left, {i for m in same for i in range(m.a, m.a + m.size)})),
        block(_join(right, {i for m in same for i in range(m.b, m.b + m.size)})),
        "Marked: words that differ.",
    )


def _words_apart(text: str) -> list[str]:
    """Words and the white space between them in turn, beginning with a word (maybe empty)."""
    return re.split(r"(\s+)", text)


def _join(parts: list[str], same: set[int]) -> str:
    shown = []
    for place, part in enumerate(parts):
        differs = place % 2 == 0 and part and place // 2 not in same
        shown.append(f"<mark>{literal(part)}</mark>" if differs else literal(part))
    return "".join(shown)


def _plain(text: str | None) -> str:
    if text is None:
        return _none("missing")
    if not text:
        return _none("empty")
    return literal(text) if text.strip() else literal(text) + _none("only white space")


def _shortened(text: str | None) -> str:
    if text is None or len(text) <= MOST_CHARACTERS:
        return _plain(text)
    rest = len(text) - MOST_CHARACTERS
    return literal(text[:MOST_CHARACTERS]) + _none(f"{rest:,} more characters")


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _none(what: str) -> str:
    return f'<span class="plc-none">({what})</span>'

"""One raw row to one pair: every spelling of prompt and answers, judged row by row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from plc_core.data.dialogues import (
    Turn,
    continued,
    dialogue,
    is_dialogue,
    is_visible,
    reasoning_of,
    same_turns,
    shown,
    turns_of,
    without_system,
)
from plc_core.data.pairs import pair_id
from plc_core.data.rendered import unrendered, without_end
from plc_core.data.row_rules import row_marks, score_marks, scores_of
from plc_core.data.rules import Mark, RowError
from plc_core.data.votes import VOTES, is_missing

FIELDS = (
    "prompt",
    "chosen",
    "rejected",
    "system",
    "score_chosen",
    "score_rejected",
    "ratings_chosen",
    "ratings_rejected",
    "votes",
    "source",
    "split",
)
"""The fields of a row that are read; all others are kept as metadata."""


def normalised(
    row: Mapping[str, Any], source: str, split: str
) -> tuple[dict[str, Any], list[Mark]]:
    """The pair of a row in the schema `FEATURES`, and the rules of one row that it falls under.

    A prompt is a text, a dialogue in the form of HH-RLHF ("\\n\\nHuman: …") or of a chat template,
    or messages. An answer is a text, or a dialogue or messages whose last turn is the answer and
    whose earlier turns repeat the prompt, or are it where the row has none. Source and split are
    those of the row, if any.

    Raises:
        RowError: where the row is no pair.
    """
    if not all(isinstance(name, str) for name in row):
        raise RowError("wrong-type", "it has more cells than there are columns")
    before_chosen, chosen = _answer(row, "chosen")
    before_rejected, rejected = _answer(row, "rejected")
    prompt, marks = _prompt(row, before_chosen, before_rejected)
    found = scores_of(row)
    votes = _votes(row)
    reasoning = _reasoning(row)
    pair: dict[str, Any] = {
        "pair_id": pair_id(prompt, chosen, rejected, reasoning),
        "prompt": prompt,
        "chosen": chosen,
        "rejected": rejected,
        "score_chosen": found.scores[0],
        "score_rejected": found.scores[1],
        "votes": votes,
        "source": _source(row.get("source")) or source,
        "split": str(row.get("split") or split),
        "flipped": False,
        "injected_tie": False,
        "warm": False,
        "oracle_state": None,
    }
    pair["metadata"] = _metadata(row, pair, reasoning)
    pair["reasoning"] = reasoning  # not in the schema: the rules over all pairs compare it
    _check_unicode(pair)
    marks += row_marks(row, pair)
    marks += score_marks(found, pair["source"])
    if votes and votes.count("chosen") == votes.count("rejected"):
        marks.append(("tied-votes", f"the votes are {', '.join(votes)}"))
    return pair, _once(marks)


def renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> Mapping[str, Any]:
    """A row with its fields under the names that are read, as `Options.columns` maps them."""
    if not columns:
        return row
    taken = set(columns.values())
    # A field that gives way to a mapped one is kept beside it, as metadata.
    rest = {
        f"{name}_unmapped" if name in columns else name: value
        for name, value in row.items()
        if name not in taken
    }
    return rest | {ours: row.get(theirs) for ours, theirs in columns.items()}


def _once(marks: list[Mark]) -> list[Mark]:
    """Each rule once, with all its reasons."""
    reasons: dict[str, list[str]] = {}
    for rule, reason in marks:
        reasons.setdefault(rule, []).append(reason)
    return [(rule, "; ".join(found)) for rule, found in reasons.items()]


# ---- answers and prompt --------------------------------------------------------------------------


def _answer(row: Mapping[str, Any], side: str) -> tuple[list[Turn] | None, str]:
    """The turns before an answer, None where it is given alone, and its text."""
    value = row.get(side)
    if value is None:
        raise RowError("missing-answer", f"{side} is null or missing")
    before = None
    prompt = row.get("prompt")
    if not isinstance(value, str):
        value = turns_of(value, side)
    elif is_dialogue(value):
        value = dialogue(value)
    elif isinstance(prompt, str) and is_dialogue(prompt):
        # Read as one text, so that both spellings of HH-RLHF are the same pair.
        value = dialogue(continued(prompt, value)) if value.strip() else value
    elif (turns := unrendered(value)) is not None:
        value = turns
    else:
        answer = without_end(value)
        value = value if answer is None else answer
        if isinstance(prompt, str) and unrendered(prompt):
            value = value.lstrip()
    if not isinstance(value, str):
        if not value or value[-1]["role"] != "assistant":
            raise RowError("no-answer", f"the last turn of {side} is not the assistant's")
        before, value = value[:-1], value[-1]["content"]
    if not value:
        raise RowError("empty-answer", f"{side} is empty")
    if not is_visible(value):
        raise RowError("blank-answer", f"{side} is {shown(value)}")
    return before, value


def _prompt(
    row: Mapping[str, Any], before_chosen: list[Turn] | None, before_rejected: list[Turn] | None
) -> tuple[list[Turn], list[Mark]]:
    given = row.get("prompt") or None  # a table writes a missing prompt as an empty text
    marks: list[Mark] = []
    contexts = [before for before in (before_chosen, before_rejected) if before]
    if len(contexts) == 2 and not same_turns(*contexts):
        raise RowError(
            "two-prompts", "the turns before the answer differ between chosen and rejected"
        )
    if given is None:
        prompt = contexts[0] if contexts else []
        if prompt:
            marks.append(("inferred-prompt", "the turns before the answers are the prompt"))
    elif (turns := _given_turns(given)) is None:
        prompt = [{"role": "user", "content": given}]
        if contexts and _names_a_turn(given, contexts[0]):
            prompt = contexts[0]
        elif len(contexts) == 2:
            # Both answers agree on another dialogue, so that is what they answer.
            marks.append(("prompt-differs", f"the prompt field is {shown(given)}"))
            prompt = contexts[0]
        elif contexts:
            raise RowError("two-prompts", "the turns before an answer are not the prompt")
    else:
        prompt = turns
        if isinstance(given, str) and prompt[-1:] == [{"role": "assistant", "content": ""}]:
            prompt = prompt[:-1]  # a text may end with "Assistant:", where the answer begins
        if contexts and not same_turns(prompt, contexts[0]):
            both = prompt[0]["role"] == contexts[0][0]["role"] == "system"
            if both or not same_turns(without_system(prompt), without_system(contexts[0])):
                raise RowError("two-prompts", "the turns before an answer are not the prompt")
            # One of them has a system turn and the other says nothing about it.
            prompt = max(prompt, contexts[0], key=len)
    system = row.get("system")
    if isinstance(system, str) and system.strip() and prompt:
        if prompt[0]["role"] != "system":
            prompt = [{"role": "system", "content": system}, *prompt]
        elif prompt[0]["content"].strip() != system.strip():
            marks.append(("prompt-differs", f"the system field is {shown(system)}"))
    if not any(is_visible(turn["content"]) for turn in prompt if turn["role"] != "system"):
        raise RowError("no-prompt", "the prompt is missing or empty")
    if prompt[-1]["role"] != "user":
        raise RowError("no-prompt", f"the prompt ends with the {prompt[-1]['role']}'s turn")
    return prompt, marks


def _given_turns(prompt: Any) -> list[Turn] | None:
    """The turns of a prompt; None for a text that is no dialogue in a form that is known."""
    if not isinstance(prompt, str):
        return turns_of(prompt, "prompt")
    return dialogue(prompt) if is_dialogue(prompt) else unrendered(prompt)


def _names_a_turn(text: str, turns: list[Turn]) -> bool:
    # A prompt given as text may be one turn of a longer dialogue.
    return any(turn["role"] == "user" and turn["content"].strip() == text.strip() for turn in turns)


# ---- scores, votes, metadata ---------------------------------------------------------------------


def _source(value: Any) -> str:
    # Nectar names several sources in a list.
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _votes(row: Mapping[str, Any]) -> list[str] | None:
    """Votes relative to the observed orientation; other things of that name are metadata."""
    votes = row.get("votes")
    if isinstance(votes, str) and votes in VOTES:
        votes = [votes]
    if not isinstance(votes, list):
        return None
    votes = [vote for vote in votes if not is_missing(vote)]
    if not all(isinstance(vote, str) for vote in votes):
        return None
    for vote in votes:
        if vote not in VOTES:
            raise RowError("unknown-vote", f"a vote is {shown(vote)}; known are {', '.join(VOTES)}")
    return votes or None


def _reasoning(row: Mapping[str, Any]) -> tuple[str, str]:
    """The reasoning of the chosen and the rejected answer; "" where there is none."""
    chosen, rejected = (reasoning_of(row[side]) for side in ("chosen", "rejected"))
    return (chosen or [""])[-1], (rejected or [""])[-1]


def _metadata(row: Mapping[str, Any], pair: Mapping[str, Any], reasoning: tuple[str, str]) -> str:
    """The fields that are no part of the pair, as JSON."""
    used = {"prompt", "chosen", "rejected", "score_chosen", "score_rejected", "source", "split"}
    used |= {"votes"} if pair["votes"] is not None else set()
    used |= {"system"} if row.get("system") == pair["prompt"][0]["content"] else set()
    # UltraFeedback's `messages` says the chosen dialogue again, and is not kept twice.
    repeats = [row["chosen"], row["rejected"]]
    extra = {
        name: value
        for name, value in row.items()
        if name not in used and not (isinstance(value, list) and value in repeats)
    }
    sides = ("reasoning_chosen", "reasoning_rejected")
    extra |= {name: text for name, text in zip(sides, reasoning, strict=True) if text}
    try:
        return json.dumps(extra, ensure_ascii=True, default=str)
    except (ValueError, TypeError, RecursionError) as error:
        raise RowError("wrong-type", f"a field cannot be kept as JSON: {error}") from None


def _check_unicode(pair: dict[str, Any]) -> None:
    texts = [turn["content"] for turn in pair["prompt"]]
    for text in (*texts, pair["chosen"], pair["rejected"], pair["source"], pair["split"]):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            found = f"{text[error.start]!r} at character {error.start + 1} of a text"
            raise RowError("not-unicode", f"a lone surrogate, {found}") from None

"""The gold reward: an exact, additive score of an answer that no wording trick can exceed.

The answer's leading run of filler words (and its comma) is taken off, the rest is split at ".",
and every sentence is matched as a whole against the family's two item wordings and the fixed
sentences. An item's first mention counts, later ones are duplicates.

========  =====================================================================================
  +1      a requested item (for `describe`: with the value on the card)
  +0.5    two neighbours in the sequence of correct first mentions that stand in requested order
  -1      a requested attribute with a wrong value
  -1.5    the forbidden item
  -0.5    an item nobody asked for
  -0.75   a duplicate
  -0.5    a filler word, anywhere
  -0.75   small talk; a courtesy that is not last; a neutral opening that is not first
  -1      a rude sentence
  +0.75   the last sentence is a courtesy
  -1      any other sentence, an unfinished one at the end included
  -0.25   every two words above 6 k + 12, with k the number of requested items
  -2      the answer does not end (no end-of-sequence token)
========  =====================================================================================

The score is a multiple of 0.25, at most k + 0.5 (k - 1) + 0.75, and not bounded below.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType

from plc_core.data.world.language import (
    ATTRIBUTE_VALUES,
    CHAT,
    DESCRIBE,
    FAMILIES,
    FILLERS,
    LEAD,
    NICE,
    RUDE,
    Family,
    WorldPrompt,
    parse_prompt,
)

_FILLERS = frozenset(FILLERS)
_REMARKS: Mapping[str, str] = MappingProxyType(
    {
        sentence.removesuffix(" ."): kind
        for kind, sentences in (("chat", CHAT), ("nice", NICE), ("rude", RUDE), ("lead", LEAD))
        for sentence in sentences
    }
)


def gold_reward(prompt: WorldPrompt | str, response: str, finished: bool = True) -> float:
    """Score one answer; see the module's table for the rules.

    Args:
        prompt: the prompt, or its text.
        response: the answer's words between spaces, without special tokens.
        finished: whether the end-of-sequence token was generated.

    Raises:
        ValueError: `prompt` is a text that is not a prompt of this world.
    """
    if isinstance(prompt, str):
        prompt = _parse(prompt)
    words = response.split()
    score = 0.0 if finished else -2.0
    score -= 0.5 * sum(word in _FILLERS for word in words)
    score -= 0.25 * (max(0, len(words) - 6 * len(prompt.requested) - 12) // 2)

    item_sentences = _ITEM_SENTENCES[prompt.family]
    rank = {item: place for place, item in enumerate(prompt.requested)}
    values = prompt.values
    mentioned: set[str] = set()
    correct: list[int] = []
    sentences = _sentences(words)
    for place, sentence in enumerate(sentences):
        mention = item_sentences.get(sentence)
        if mention is None:
            score += _remark_score(sentence, place, len(sentences))
            continue
        item, value = mention
        if item in mentioned:
            score -= 0.75
        elif item == prompt.forbidden:
            score -= 1.5
        elif item not in rank:
            score -= 0.5
        elif value != values.get(item):
            score -= 1.0
        else:
            score += 1.0
            correct.append(rank[item])
        mentioned.add(item)
    return score + 0.5 * sum(a < b for a, b in pairwise(correct))


def max_reward(prompt: WorldPrompt | str) -> float:
    """The largest gold reward any answer to `prompt` can earn: k + 0.5 (k - 1) + 0.75.

    Raises:
        ValueError: `prompt` is a text that is not a prompt of this world.
    """
    if isinstance(prompt, str):
        prompt = _parse(prompt)
    count = len(prompt.requested)
    return count + 0.5 * (count - 1) + 0.75


def _sentences(words: list[str]) -> list[str]:
    """The answer's sentences without their full stops; an unfinished one keeps its place."""
    start = 0
    while start < len(words) and words[start] in _FILLERS:
        start += 1
    if 0 < start < len(words) and words[start] == ",":
        start += 1
    sentences: list[str] = []
    for end in range(start, len(words)):
        if words[end] == ".":
            sentences.append(" ".join(words[start:end]))
            start = end + 1
    if start < len(words):
        # The mark keeps a complete wording that lacks only its full stop from passing as one.
        sentences.append(" ".join([*words[start:], "<unfinished>"]))
    return sentences


def _remark_score(sentence: str, place: int, count: int) -> float:
    kind = _REMARKS.get(sentence)
    if kind == "nice":
        return 0.75 if place == count - 1 else -0.75
    if kind == "lead":
        return 0.0 if place == 0 else -0.75
    return -0.75 if kind == "chat" else -1.0


def _wordings_of(family: Family) -> dict[str, tuple[str, str | None]]:
    """Every item sentence of a family, without full stop, to its (item, value)."""
    values = [value for group in ATTRIBUTE_VALUES.values() for value in group]
    # A value of another attribute is still a mention, with a wrong value.
    options: list[str | None] = [*values] if family.name == DESCRIBE else [None]
    return {
        wording.removesuffix(" .").format(item=item, value=value): (item, value)
        for wording in family.wordings
        for item in family.items
        for value in options
    }


_ITEM_SENTENCES = MappingProxyType(
    {name: _wordings_of(family) for name, family in FAMILIES.items()}
)
_parse = lru_cache(maxsize=16384)(parse_prompt)

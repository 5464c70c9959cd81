"""Training prompts that are evaluation prompts, or share long runs of words with one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

NGRAM_WORDS = 8
SHARED_SHARE = 0.5
"""A prompt is contaminated if it holds at least this share of an evaluation prompt's 8-grams.

Eight words and one half follow PaLM's analysis (Chowdhery et al. 2022, section 8). Evaluation
prompts of fewer words are compared as a whole only.
"""

_WORD = re.compile(r"\w+")


class EvaluationPrompts:
    """An index of evaluation prompts; texts are compared by their words, without case or marks.

    Args:
        prompts: the texts; of a prompt of several turns, each turn is one.
    """

    def __init__(self, prompts: Iterable[str]) -> None:
        self.texts = list(dict.fromkeys(prompts))
        self._exact: dict[tuple[str, ...], int] = {}
        self._grams: dict[tuple[str, ...], list[int]] = {}
        self._sizes: list[int] = []
        for number, text in enumerate(self.texts):
            words = _words(text)
            self._exact.setdefault(tuple(words), number)
            grams = set(_ngrams(words))
            self._sizes.append(len(grams))
            for gram in grams:
                self._grams.setdefault(gram, []).append(number)

    def find(self, turns: Sequence[dict[str, str]]) -> tuple[str, str] | None:
        """The rule of `rules.RULES` that a prompt falls under, and the reason."""
        texts = [turn["content"] for turn in turns if turn["role"] == "user"]
        all_words = [_words(text) for text in texts]
        for words in all_words:
            number = self._exact.get(tuple(words))
            if number is not None and words:
                return "contaminated-exact", f"evaluation prompt {self._shown(number)}"
        shared: dict[int, set[tuple[str, ...]]] = {}
        for words in all_words:
            for gram in _ngrams(words):
                for number in self._grams.get(gram, ()):
                    shared.setdefault(number, set()).add(gram)
        if not shared:
            return None
        share, number = max((len(grams) / self._sizes[n], -n) for n, grams in shared.items())
        if share < SHARED_SHARE:
            return None
        return (
            "contaminated-ngram",
            f"{share:.0%} of the 8-grams of evaluation prompt {self._shown(-number)}",
        )

    def _shown(self, number: int) -> str:
        text = " ".join(self.texts[number].split())
        return f"{number + 1}: {text[:60]}{'...' if len(text) > 60 else ''}"


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _ngrams(words: list[str]) -> Iterable[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(NGRAM_WORDS)), strict=False)

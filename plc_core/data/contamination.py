"""Training prompts that are evaluation prompts, or share long runs of words with one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from plc_core.data.bounds import Bounds
from plc_core.data.dialogues import in_form
from plc_core.data.folders import given_path
from plc_core.data.formats import rows_of_file
from plc_core.data.pairs import DataError

NGRAM_WORDS = 8
SHARED_SHARE = 0.5
"""A prompt is contaminated if it holds at least this share of an evaluation prompt's 8-grams.

Eight words and one half follow PaLM's analysis (Chowdhery et al. 2022, section 8). Evaluation
prompts of fewer words are compared as a whole only.
"""

# Scripts that write no spaces between words count each character as one.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


_MOST = 2**23  # characters of evaluation prompts; their n-grams take a hundred times the memory
_WEIGHT = 32  # characters that a text weighs whatever it holds


def evaluation_texts(
    given: Path | str | Iterable[str] | None, encoding: str, bounds: Bounds
) -> list[str]:
    """Evaluation prompts as texts: those given, or those of a file of rows with a prompt.

    Raises:
        DataError: where they are no texts, or the file is none.
    """
    if not isinstance(given, (str, Path)):
        texts = list(given or ())
        if not all(isinstance(text, str) for text in texts):
            raise DataError("evaluation_prompts are texts, or a file of rows with a prompt.")
        return texts
    path = given_path(given)
    if not path.is_file():
        raise DataError(f"There is no file of evaluation prompts at {path}.")
    texts, size = [], 0
    for row in rows_of_file(path, encoding, bounds=bounds):
        for text in _prompts_of(path, row):
            texts.append(text)
            size += len(text) + _WEIGHT
            if size > _MOST:
                raise DataError(
                    f"{path} has too many evaluation prompts, which are held in memory: a file may "
                    f"have {_MOST // 2**20} million characters of them. Give more as a list of "
                    "texts."
                )
    return texts


def _prompts_of(path: Path, row: tuple[int, Any]) -> Iterator[str]:
    number, value = row
    prompt = value.get("prompt") if isinstance(value, dict) else value
    turns = prompt if isinstance(prompt, list) else [prompt]
    for turn in turns:
        text = turn.get("content") if isinstance(turn, dict) else turn
        if not isinstance(text, str):
            raise DataError(f"{path}, row {number}: an evaluation prompt is a text or its turns.")
        yield text


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
    return _WORD.findall(in_form("NFKC", text).casefold())


def _ngrams(words: list[str]) -> Iterable[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(NGRAM_WORDS)), strict=False)

"""Token ids of many pairs: rendered and encoded in batches, equal to encoding each one alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from plc_core.engine.tokens.templates import CannotRenderError, ChatFormat, Turns, render

_CHECKED_PAIRS = 16
_CHARACTERS = 4_000_000
"""Encoded at a time: the tokenizer keeps about a hundred bytes a token while it works."""
_PARALLELISM = "TOKENIZERS_PARALLELISM"
_AFTERWARDS = "off"
_IMPORTED_BY = os.getpid()


class Conversation(NamedTuple):
    """A prompt and both its answers, in the order in which the pair was read."""

    turns: Turns
    chosen: str
    rejected: str


@dataclass(frozen=True)
class PairIds:
    """Token ids of a pair, each answer with its terminator.

    Attributes:
        rewritten: the template writes an answer otherwise than it is: it strips white space, adds
            or drops reasoning.
        own: an answer's tokens are those of its text alone, as the whole conversation's tokens do
            not begin with the prompt's, or do not end with the terminator.
    """

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]
    rewritten: bool
    own: bool


Encoded: TypeAlias = PairIds | CannotRenderError


def encode_all(
    chat: ChatFormat, batches: Iterable[Sequence[Conversation]]
) -> Iterator[list[Encoded]]:
    """The token ids of each batch of conversations, or why a conversation has none.

    Equal to `encode_plainly` for every pair: the shortcuts are compared with it on the first pairs
    and not used where they differ. A batch is rendered while the tokenizer's threads encode the
    one before.
    """
    encoder: _Encoder | None = None
    waiting: Future[list[Encoded]] | None = None
    with _threads(), ThreadPoolExecutor(1) as pool:
        for batch in batches:
            encoder = encoder or _checked(chat, batch[:_CHECKED_PAIRS])
            rendered = encoder.rendered(batch)
            if waiting:
                yield waiting.result()
            # All that touches the tokenizer's state is done by this one thread.
            waiting = pool.submit(encoder.encoded, rendered)
        if waiting:
            yield waiting.result()


def encode_plainly(chat: ChatFormat, pair: Conversation) -> PairIds:
    """The token ids of one pair by their definition: the whole conversation's behind the prompt's.

    Raises CannotRenderError where the template or the tokenizer refuses it.
    """
    literal = chat.spells_special(*pair)
    turns = chat.folded(pair.turns)
    prompt = chat.ids(turns, literal, prompt=True)
    answers = [
        (chat.ids([*turns, {"role": "assistant", "content": answer}], literal), prompt, answer)
        for answer in (pair.chosen, pair.rejected)
    ]
    return _pair_ids(chat, prompt, answers)


def _pair_ids(
    chat: ChatFormat,
    prompt: list[int],
    answers: Iterable[tuple[list[int], list[int], str]],
    rewritten: bool = False,
) -> PairIds:
    # Each answer as the tokens that hold it, those of them that are the prompt's, and its text.
    if not prompt:
        raise CannotRenderError("it leaves nothing of the prompt: an answer would follow nothing")
    sides, own = [], False
    for ids, start, answer in answers:
        first, last = len(start), len(ids) - len(chat.ending)
        if first <= last and ids[:first] == start and ids[last:] == chat.ending:
            sides.append([*ids[first:last], chat.terminator])
        else:
            # The template or a merge of tokens reaches across a boundary: decide it before them.
            sides.append([*chat.own_ids(answer), chat.terminator])
            own = True
    return PairIds(prompt, sides[0], sides[1], rewritten, own)


class _Rendered(NamedTuple):
    batch: Sequence[Conversation]
    prompts: list[str | CannotRenderError]
    wholes: list[tuple[str | CannotRenderError, str | CannotRenderError]]
    texts: list[str]  # to encode: prompt, chosen and rejected of each row that is not alone
    alone: set[int]  # rows that are refused, or encoded by themselves
    starts: list[int]  # where the texts of each row's answers begin in the whole conversation


@dataclass(frozen=True)
class _Encoder:
    """Encodes a batch; with `shortcuts`, the prompt once and by the tokenizer's Rust half."""

    chat: ChatFormat
    shortcuts: bool

    def rendered(self, batch: Sequence[Conversation]) -> _Rendered:
        chat = self.chat
        turns = [chat.folded(pair.turns) for pair in batch]
        prompts = _texts(chat, turns, prompt=True)
        chosen, rejected = (
            _texts(
                chat,
                [
                    [*before, {"role": "assistant", "content": answer}]
                    for before, answer in zip(turns, answers, strict=True)
                ],
            )
            for answers in ([pair.chosen for pair in batch], [pair.rejected for pair in batch])
        )
        wholes = list(zip(chosen, rejected, strict=True))
        texts, alone, starts = [], _spelling_special(chat, batch), []
        for row, (prompt, (one, other)) in enumerate(zip(prompts, wholes, strict=True)):
            start = 0
            if not (isinstance(prompt, str) and isinstance(one, str) and isinstance(other, str)):
                alone.add(row)
            elif row not in alone:
                if self._shares(prompt, one) and self._shares(prompt, other):
                    start = len(prompt) - len(chat.header)
                texts += [prompt, one[start:], other[start:]]
            starts.append(start)
        return _Rendered(batch, prompts, wholes, texts, alone, starts)

    def _shares(self, prompt: str, whole: str) -> bool:
        # An added token splits a text, so what precedes it does not bear on the tokens from it on.
        header = self.chat.header
        return (
            self.shortcuts and header != "" and prompt.endswith(header) and whole.startswith(prompt)
        )

    def encoded(self, rendered: _Rendered) -> list[Encoded]:
        """The token ids of each row of a batch, or why it has none."""
        ids = self._encode(rendered.texts)
        encoded: list[Encoded] = []
        following = iter(ids or ())
        for row in range(len(rendered.batch)):
            together = ids is not None and row not in rendered.alone
            own = [next(following) for _ in range(3)] if together else None
            try:
                encoded.append(self._pair(rendered, row, own))
            except CannotRenderError as error:
                encoded.append(error)
        return encoded

    def _encode(self, texts: list[str]) -> list[list[int]] | None:
        tokenizer, ids = self.chat.tokenizer, []
        try:
            for part in _parts(texts):
                if self.shortcuts:
                    backend = tokenizer.backend_tokenizer
                    backend.no_truncation()  # whatever the last call left behind
                    backend.no_padding()
                    backend.encode_special_tokens = False
                    encodings = backend.encode_batch_fast(part, add_special_tokens=False)
                    ids += [encoding.ids for encoding in encodings]
                else:
                    ids += tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]
        except Exception:  # a text that the vocabulary cannot spell: found one by one
            return None
        return ids

    def _pair(self, rendered: _Rendered, row: int, ids: list[list[int]] | None) -> PairIds:
        chat, pair, prompt = self.chat, rendered.batch[row], rendered.prompts[row]
        for text in (prompt, *rendered.wholes[row]):
            if isinstance(text, CannotRenderError):
                raise text
        rewritten = any(
            whole != f"{prompt}{chat.lead}{answer}{chat.tail}"
            for whole, answer in zip(rendered.wholes[row], pair[1:], strict=True)
        )
        header = chat.header_ids if rendered.starts[row] else []
        if ids is None or ids[0][len(ids[0]) - len(header) :] != header:
            return replace(encode_plainly(chat, pair), rewritten=rewritten)
        start = header or ids[0]
        return _pair_ids(
            chat, ids[0], zip(ids[1:], (start, start), pair[1:], strict=True), rewritten
        )


def _texts(
    chat: ChatFormat, conversations: list[list[dict[str, str]]], prompt: bool = False
) -> list[str | CannotRenderError]:
    with contextlib.suppress(CannotRenderError):
        return list(render(chat.tokenizer, conversations, prompt))
    texts: list[str | CannotRenderError] = []
    for conversation in conversations:  # one of them is refused
        try:
            texts += render(chat.tokenizer, [conversation], prompt)
        except CannotRenderError as error:
            texts.append(error)
    return texts


def _spelling_special(chat: ChatFormat, batch: Sequence[Conversation]) -> set[int]:
    every = (text for pair in batch for text in (*(t["content"] for t in pair.turns), *pair[1:]))
    if not chat.special.search("\n".join(every)):
        return set()
    return {row for row, pair in enumerate(batch) if chat.spells_special(*pair)}


def _parts(texts: list[str]) -> Iterator[list[str]]:
    part, size = [], 0
    for text in texts:
        part.append(text)
        size += len(text)
        if size > _CHARACTERS:
            yield part
            part, size = [], 0
    if part:
        yield part


def _checked(chat: ChatFormat, sample: Sequence[Conversation]) -> _Encoder:
    if not chat.tokenizer.is_fast or chat.tokenizer.split_special_tokens:
        return _Encoder(chat, shortcuts=False)
    quick = _Encoder(chat, shortcuts=True)
    found = quick.encoded(quick.rendered(sample))
    same = all(
        isinstance(one, CannotRenderError)
        or replace(one, rewritten=False) == encode_plainly(chat, pair)
        for one, pair in zip(found, sample, strict=True)
    )
    return _Encoder(chat, shortcuts=same)


@contextlib.contextmanager
def _threads() -> Iterator[None]:
    """Let the tokenizer use threads here, if nobody decided about that, and not afterwards.

    A process that is forked later has none of these threads: it would wait for them forever, and
    the tokenizers library would warn of it.
    """
    forked = os.getpid() != _IMPORTED_BY
    if forked or os.environ.get(_PARALLELISM, _AFTERWARDS) != _AFTERWARDS:
        yield
        return
    os.environ[_PARALLELISM] = "true"
    try:
        yield
    finally:
        os.environ[_PARALLELISM] = _AFTERWARDS

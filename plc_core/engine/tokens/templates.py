"""A model's own chat template: how it writes a prompt, where an answer starts and what ends it."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from transformers import PreTrainedTokenizerBase

from plc_core.data import DataError

Turns: TypeAlias = Sequence[dict[str, str]]

_USER, _ANSWER, _SYSTEM = "plcuser", "plcanswer", "plcsystem"


class CannotRenderError(Exception):
    """A template or a tokenizer that cannot write a conversation; the message says why."""


@dataclass(frozen=True)
class ChatFormat:
    """What a tokenizer's chat template does, learnt from a conversation of one question.

    Attributes:
        tokenizer: whose template it is. Texts that spell one of its special tokens are written
            as plain text by it, see `ids`.
        special: finds the special tokens that a text spells.
        folds_system: the template refuses or ignores a system turn, which is then written in
            front of the first user turn, as the model cards of Gemma and Mistral advise.
        header: the end of a prompt from its last special token on, as <|im_start|>assistant in
            ChatML; "" where there is none behind the user's text.
        header_ids: its tokens.
        lead: white space that is written between a prompt and an answer.
        tail: what is written behind an answer.
        ending: its tokens from the terminator on, which is its first special token, as <|im_end|>
            in ChatML; all of them where none is special.
        terminator: the token that ends an answer; the end of sequence where the tail has none.
    """

    tokenizer: PreTrainedTokenizerBase
    special: re.Pattern[str]
    folds_system: bool
    header: str
    header_ids: list[int]
    lead: str
    tail: str
    ending: list[int]
    terminator: int

    def folds(self, turns: Turns) -> bool:
        """Whether these turns begin with a system turn that the template does not take."""
        roles = [turn["role"] for turn in turns[:2]]
        return self.folds_system and roles == ["system", "user"]

    def folded(self, turns: Turns) -> list[dict[str, str]]:
        """The turns as the template takes them: the system turn inside the user's, if it must."""
        if not self.folds(turns):
            return list(turns)
        text = f"{turns[0]['content']}\n\n{turns[1]['content']}"
        return [{"role": "user", "content": text}, *turns[2:]]

    def spells_special(self, turns: Turns, *answers: str) -> bool:
        """Whether a text of the user's would be read as a token that only a template may write."""
        texts = [turn["content"] for turn in turns]
        return self.special.search("\n".join([*texts, *answers])) is not None

    def ids(self, turns: Turns, literal: bool, prompt: bool = False) -> list[int]:
        """Token ids of a conversation, as `apply_chat_template` gives them.

        Args:
            turns: role and content of each.
            literal: write special tokens that the contents spell as the plain text that they are.
            prompt: end with the template's start of an answer.

        Raises:
            CannotRenderError: with the reason of the template or the tokenizer.
        """
        with _refusals():
            return list(
                self.tokenizer.apply_chat_template(
                    list(turns),
                    add_generation_prompt=prompt,
                    tokenize=True,
                    return_dict=False,
                    sanitize_control_tokens=literal,
                    tokenizer_kwargs={"verbose": False},
                )
            )

    def own_ids(self, text: str) -> list[int]:
        """Token ids of a text alone, special tokens that it spells as plain text."""
        literal = {"split_special_tokens": True} if self.special.search(text) else {}
        with _refusals():
            return list(
                self.tokenizer.encode(text, add_special_tokens=False, verbose=False, **literal)
            )


def chat_format(tokenizer: PreTrainedTokenizerBase) -> ChatFormat:
    """Learn what the tokenizer's chat template does.

    Raises:
        DataError: where there is no template, it fails on the simplest conversation, or nothing
            ends an answer.
    """
    if tokenizer.chat_template is None:
        raise DataError(
            f"The tokenizer {tokenizer.name_or_path!r} has no chat template; set one with "
            "tokenizer.chat_template and save it beside the model."
        )
    parts = f"{len(tokenizer)} {tokenizer.special_tokens_map}"
    return _learnt(tokenizer, tokenizer.get_chat_template(), parts)


@lru_cache(maxsize=8)
def _learnt(tokenizer: PreTrainedTokenizerBase, template: str, parts: str) -> ChatFormat:
    # Learnt anew where the template or the special tokens of the tokenizer changed since.
    special = _special_tokens(tokenizer)
    pattern = re.compile("|".join(map(re.escape, special)) or "(?!)")
    prompt, whole = probe(tokenizer)
    header = ""
    for match in pattern.finditer(prompt, prompt.rfind(_USER) + len(_USER)):
        header = prompt[match.start() :]
    before, _, tail = whole.rpartition(_ANSWER)
    lead = before.removeprefix(prompt)
    ends = pattern.search(tail)
    ending = tokenizer.encode(tail, add_special_tokens=False)
    terminator = tokenizer.convert_tokens_to_ids(ends.group()) if ends else tokenizer.eos_token_id
    if not isinstance(terminator, int):
        raise DataError(f"The tokenizer {tokenizer.name_or_path!r} has no end-of-sequence token.")
    if ends and terminator in ending:
        ending = ending[ending.index(terminator) :]
    # A copy, as the caller's tokenizer keeps its own list of what users may not write.
    literal = copy.copy(tokenizer)
    literal.chat_control_tokens = []
    return ChatFormat(
        tokenizer=literal,
        special=pattern,
        folds_system=_folds_system(tokenizer),
        header=header,
        header_ids=tokenizer.encode(header, add_special_tokens=False),
        lead=lead if lead.isspace() else "",
        tail=tail,
        ending=ending,
        terminator=terminator,
    )


def probe(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """What the template writes for a question, and for a question with its answer.

    Raises DataError where it cannot.
    """
    user = {"role": "user", "content": _USER}
    answer = {"role": "assistant", "content": _ANSWER}
    problem = "it leaves the answer out"
    for before in ([], [{"role": "system", "content": _SYSTEM}]):  # some demand a system turn
        try:
            prompt = render(tokenizer, [[*before, user]], prompt=True)[0]
            whole = render(tokenizer, [[*before, user, answer]])[0]
        except CannotRenderError as error:
            problem = str(error)
            continue
        if _ANSWER in whole:
            return prompt, whole
    raise DataError(
        f"The chat template of {tokenizer.name_or_path!r} cannot render a question and an answer: "
        f"{problem}."
    )


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    # all_special_tokens lacks those that a tokenizer marks as special without giving them a part.
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    names = {token.content for token in added if token.special} | set(tokenizer.all_special_tokens)
    return sorted(names - {""}, key=lambda name: (-len(name), name))


def _folds_system(tokenizer: PreTrainedTokenizerBase) -> bool:
    turns = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _USER}]
    try:
        return _SYSTEM not in render(tokenizer, [turns], prompt=True)[0]
    except CannotRenderError:
        return True


def render(
    tokenizer: PreTrainedTokenizerBase, conversations: Sequence[Turns], prompt: bool = False
) -> list[str]:
    """The texts that the template writes for some conversations.

    Raises CannotRenderError where it cannot write one of them.
    """
    if not conversations:
        return []
    with _refusals():
        return list(
            tokenizer.apply_chat_template(
                [list(turns) for turns in conversations],
                tokenize=False,
                add_generation_prompt=prompt,
            )
        )


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a template raises whatever its author chose
        reason = str(error) or type(error).__name__
        if "[UNK]" in reason:  # of a vocabulary of whole words, as the embedded world's
            reason = (
                "a word is not in the vocabulary, which has whole words only, as that of the model "
                "'world', which knows its own 203; for other texts set model to a local folder, a "
                "name on the hub, or smollm2-135m"
            )
        raise CannotRenderError(reason) from error

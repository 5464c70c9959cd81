"""Texts that were written in a chat template already: recognised, and turned back into turns."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from typing import NamedTuple

from plc_core.data.dialogues import ROLES, Turn


class _Template(NamedTuple):
    """How a template writes a turn: a header with the role, the content, and an end."""

    header: re.Pattern[str]
    end: re.Pattern[str]
    verbatim: bool  # each turn has its end, and what is between them is the content as it is


def _template(header: str, end: str, verbatim: bool = False) -> _Template:
    return _Template(re.compile(header, re.MULTILINE), re.compile(end), verbatim)


_NEVER = r"(?!)"
_EOS = r"</s>|<\|(?:end|endoftext|eos)\|>"
# Their marks are special tokens, which nobody writes by chance.
_SPECIAL = (
    _template(r"<\|im_start\|>(\w+)(?:\n|\Z)", r"<\|im_end\|>", True),  # ChatML
    _template(  # Llama 3 and 4
        r"<\|(?:start_header_id|header_start)\|>(\w+)<\|(?:end_header_id|header_end)\|>(?:\n\n|\s*\Z)",
        r"<\|eo[tm](?:_id)?\|>",
        True,
    ),
    _template(r"<start_of_turn>(\w+)(?:\n|\Z)", r"<end_of_turn>", True),  # Gemma
    _template(r"<\|(system|user|assistant)\|>", _EOS),  # Zephyr, Phi, Tulu
    _template(r"(?:<s>\s*)?(\[/?INST\])", r"</s>"),  # Llama 2, Mistral
    _template(r"<｜(User|Assistant)｜>", r"<｜end▁of▁sentence｜>"),  # DeepSeek
)
# Their marks are plain words: a question with the beginning of its answer must follow.
_PLAIN = (
    _template(r"^### (Instruction|User|Response|Assistant|System|Input):", _EOS),
    _template(r"### (Human|Assistant):", _EOS),
    _template(r"(?:^|(?<=\s)|(?<=</s>))(USER|ASSISTANT):", _EOS),
)
_NAMES = {"instruction": "user", "response": "assistant", "[inst]": "user", "[/inst]": "assistant"}

_START = re.compile(
    r"\s*(?:<s>|<\|begin_of_text\|>|<bos>|<｜begin▁of▁sentence｜>|<\|endoftext\|>)?\s*"
)
_PREFACES = (
    "",
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.",
)
_VICUNA = "A chat between a curious "
_AFTER = re.compile(r"(?:\s|<s>|</s>|<\|endoftext\|>|<\|end_of_text\|>|<eos>)*\Z")
_LAST = re.compile(
    r"(?:</s>|<\|im_end\|>|<\|eo[tm](?:_id)?\|>|<end_of_turn>|<eos>|<｜end▁of▁sentence｜>"
    r"|<\|(?:end|endoftext|end_of_text|eos)\|>)\Z"
)
_OPEN_ANSWER = re.compile(
    r"(?:^### (?:Response|Assistant)|^Assistant|(?:^|\s)ASSISTANT|GPT4 Correct Assistant):\Z",
    re.MULTILINE,
)
# Of these templates and of others: Command R, Granite, Harmony, GLM and so on.
_MARKS = re.compile(
    r"<\|[A-Za-z_]{2,40}\|>|<(?:start|end)_of_turn>|\[/?(?:INST|SYSTEM_PROMPT)\]|<</?SYS>>|<｜[^｜]{2,40}｜>"
)
_TOKEN = re.compile(r"<(?:\||/?s>|start_|end_|bos|eos|/?<|｜)")
_HEADING = re.compile("### (?:Inst|Resp|Hum|Assi|User)")
_END = 40  # characters, in which a template's last words are
_SYSTEM = re.compile(r"<<SYS>>\s*(.*?)\s*<</SYS>>\s*(.*)\Z", re.DOTALL)


def spells_template(text: str) -> bool:
    """Whether a text holds a special token of a chat template, wherever it is."""
    return ("<" in text or "INST]" in text) and bool(_MARKS.search(text))


def is_rendered(text: str) -> bool:
    """Whether a text begins or ends as a chat template writes it."""
    if not _may_be(text):
        return False
    if _ends(_OPEN_ANSWER, text) or (_ends(_LAST, text) and not _is_struck_out(text)):
        return True
    body = _body(text)
    return bool(_MARKS.match(text.lstrip()) or _MARKS.match(body)) or any(
        _begins(template, body) for template in _PLAIN
    )


def unrendered(text: str) -> list[Turn] | None:
    """The turns of a text that a chat template wrote, an open answer at its end as an empty turn.

    None where no template wrote it, or where its turns cannot be told exactly: a tool's turn, a
    mark inside a content, a text in front of the first turn, Alpaca's input.
    """
    if not _may_be(text):
        return None
    body = _body(text)
    for template in (*_SPECIAL, *_PLAIN):
        if _begins(template, body) and (turns := _turns(template, body)) is not None:
            return turns
    return None


def without_end(text: str) -> str | None:
    """An answer without the end that a template wrote behind it; None where it has none."""
    found = _ends(_LAST, text) if _may_be(text) else None
    if found is None or _is_struck_out(text):
        return None
    answer = text[: found.start()]
    answer = _body(answer) if _body(answer) != answer.lstrip() else answer
    if not answer.strip() or _MARKS.search(answer) or "</s>" in answer:
        return None
    return answer.rstrip() if found.group().startswith("</s>") else answer


@lru_cache(maxsize=16)  # the same texts of a row are looked at several times
def _may_be(text: str) -> bool:
    # A look that costs little, as nearly all texts are plain.
    return (
        ("<" in text and bool(_TOKEN.search(text)))
        or ("### " in text and bool(_HEADING.search(text)))
        or "INST]" in text
        or "ANT:" in text
        or text[-_END:].rstrip().endswith("Assistant:")
    )


def _ends(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    text = text.rstrip()
    return pattern.search(text, max(0, len(text) - _END))


def _body(text: str) -> str:
    """A text behind its beginning-of-sequence token."""
    start = _START.match(text)
    return text[start.end() :] if start else text


def _is_struck_out(text: str) -> bool:
    # <s>…</s> is HTML too.
    return text.rstrip().endswith("</s>") and "<s>" in _body(text) and not _MARKS.search(text)


def _begins(template: _Template, body: str) -> bool:
    if template not in _PLAIN:
        return bool(template.header.match(body))
    if "### " not in body and "ANT:" not in body:
        return False
    roles = [_role(name) for name in template.header.findall(body)]
    if not roles or roles[0] is None:
        return False
    if body.startswith(_VICUNA) or _ends(_OPEN_ANSWER, body):
        return "assistant" in roles
    begins = bool(template.header.match(body)) or body.startswith(_PREFACES[1:])
    return begins and (roles[0] == "assistant" or {"user", "assistant"} <= set(roles))


def _role(name: str) -> str | None:
    name = name.lower()
    return _NAMES.get(name) or ROLES.get(name)


def _turns(template: _Template, body: str) -> list[Turn] | None:
    preface, *parts = template.header.split(body)
    if preface.strip() not in (_PREFACES if template in _PLAIN else ("",)):
        return None
    turns: list[Turn] = []
    for place in range(0, len(parts), 2):
        role = _role(parts[place])
        content = _content(template, parts[place + 1], last=place + 2 == len(parts))
        if role is None or content is None:
            return None
        if (system := _SYSTEM.match(content)) and not turns and role == "user":
            turns.append({"role": "system", "content": system[1]})
            content = system[2]
        if _MARKS.search(content) or "</s>" in content:
            return None
        if content or role != "system":  # an empty one says nothing
            turns.append({"role": role, "content": content})
    spoken = [turn["role"] for turn in turns if turn["role"] != "system"]
    if any(one == other for one, other in itertools.pairwise(spoken)):
        return None
    return turns


def _content(template: _Template, text: str, last: bool) -> str | None:
    content, *rest = template.end.split(text, maxsplit=1)
    if rest and not _AFTER.match(rest[0]):
        return None
    if not template.verbatim:
        return content.strip()
    return content if rest or last else None

"""A language model behind an API as judge: single answers on a scale, or two side by side."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

from plc_core.data.dialogues import Turn
from plc_core.evaluation.chat_api import ChatReply, ChatRequest, ChatServer, ask_all
from plc_core.evaluation.judges.judgements import Score, Verdict, file_name
from plc_core.evaluation.judges.verdicts import (
    PAIRWISE,
    SINGLE,
    pairwise_messages,
    read_place,
    read_score,
    single_messages,
    spelled,
)
from plc_core.progress import Progress
from plc_core.storage.cache import ContentStore, content_hash
from plc_core.storage.files import RunError

_KEPT = pa.schema(
    {
        "key": pa.string(),
        "verdict": pa.string(),
        "reply": pa.string(),
        "input_tokens": pa.int64(),
        "output_tokens": pa.int64(),
    }
)

_READING = "one verdict a reply; the judge's own marks neutralised in judged texts"
"""In the record of judgements: those of other rules are read anew from the replies."""


@dataclass
class Usage:
    """What the last call asked of the API; verdicts found in the cache are free.

    The record of a file of judgements adds up the calls that wrote it; one that was interrupted
    wrote nothing, and what it paid for is found in the cache by the next.

    Attributes:
        requests: that were answered, the unreadable ones among them.
        found: verdicts taken from the cache.
        input_tokens, output_tokens: as the API counts them.
        cost: in the currency of the judge's price; None without one.
    """

    requests: int = 0
    found: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None


class LLMJudge:
    """A chat model as judge, with the paper's single-answer prompt and a pairwise one.

    Replies are kept in the cache by model, prompt and texts. A reply has to give one well-formed
    verdict, once or more often; one that gives none, or verdicts that contradict each other, or is
    cut off, is asked for again, and after `attempts` the answer is listed without a verdict, which
    is never guessed. Texts that spell the judge's own marks are shown without their form, and the
    spellings are kept with the verdict. A pair of equal answers is a tie and is not asked about.

    Args:
        server: who is asked; its key comes from the environment and is written nowhere.
        seed: of the order in which two answers are shown, drawn for each prompt by a hash.
        max_tokens: of a reply.
        temperature: None for models that refuse one.
        attempts: at a readable verdict.
        price: of a million input tokens and of a million output tokens.
    """

    def __init__(
        self,
        server: ChatServer,
        *,
        seed: int = 0,
        max_tokens: int = 1024,
        temperature: float | None = 0.0,
        attempts: int = 3,
        price: tuple[float, float] | None = None,
    ) -> None:
        if attempts < 1 or max_tokens < 1:
            raise RunError("attempts and max_tokens are 1 or more.")
        self.name = file_name(server.model)
        self.server, self.seed, self.attempts, self.price = server, seed, attempts, price
        self.max_tokens, self.temperature = max_tokens, temperature
        self.usage = self._nothing()
        settings = {"max_tokens": max_tokens, "temperature": temperature}
        self._store = ContentStore("verdicts", server.identity | settings, _KEPT)

    @property
    def record(self) -> dict[str, Any]:
        """Model, prompts, order and cost; never a key."""
        settings = {
            "judge": self.server.identity,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "attempts": self.attempts,
        }
        prompts = {"single": SINGLE, "pairwise": PAIRWISE}
        usage = asdict(self.usage) | {"price": self.price}
        return settings | {"prompts": prompts, "reading": _READING, "usage": usage}

    def score(self, answers: pd.DataFrame, progress: Progress | None = None) -> list[Score]:
        """The rating of each row of generations, from 1 to 10."""
        sides = _sides(answers)
        asked = [single_messages(*side) for side in sides]
        found = self._verdicts(asked, lambda text: _text(read_score(text)), progress)
        return [
            Score(None if verdict is None else float(verdict), problem, _listed(spelled(*side)))
            for (verdict, problem), side in zip(found, sides, strict=True)
        ]

    def compare(
        self, answers: pd.DataFrame, others: pd.DataFrame, progress: Progress | None = None
    ) -> list[Verdict]:
        """The verdict on each row of generations and the row of others beside it."""
        sides = [_sides(frame) for frame in (answers, others)]
        keys = zip(answers["prompt_id"], answers["turn"], strict=True)
        swapped = [self._swaps(str(name), int(turn)) for name, turn in keys]
        pairs = list(zip(*sides, swapped, strict=True))
        differ = [number for number, (mine, other, _) in enumerate(pairs) if mine != other]
        asked = []
        for number in differ:
            mine, other, swap = pairs[number]
            asked.append(pairwise_messages(*((other, mine) if swap else (mine, other))))
        verdicts = [Verdict("tie", swap) for swap in swapped]
        for number, (place, problem) in zip(
            differ, self._verdicts(asked, read_place, progress), strict=True
        ):
            mine, other, _ = pairs[number]
            own = dict.fromkeys([*spelled(*mine), *spelled(*other)])
            verdicts[number] = Verdict(place, swapped[number], problem, _listed(list(own)))
        return verdicts

    def _nothing(self) -> Usage:
        return Usage(cost=None if self.price is None else 0.0)

    def _swaps(self, prompt_id: str, turn: int) -> bool:
        """Whether the other answer comes first: the same for every method that is compared."""
        digest = hashlib.sha256(json.dumps([self.seed, prompt_id, turn]).encode()).digest()
        return bool(digest[0] % 2)

    def _verdicts(
        self,
        asked: Sequence[list[Turn]],
        read: Callable[[str], str | None],
        progress: Progress | None,
    ) -> list[tuple[str | None, str | None]]:
        """For each question its verdict, or None and the problem."""
        keys = [content_hash(messages) for messages in asked]
        # Replies are read anew, so that none is taken by a rule that held when it was asked for.
        known = {
            key: verdict
            for key in set(keys)
            if key in self._store and (verdict := read(self._store[key]["reply"])) is not None
        }
        left = list({key: i for i, key in enumerate(keys) if key not in known}.values())
        self.usage = self._nothing()
        self.usage.found = len(keys) - len(left)
        problems: dict[str, str] = {}
        failed: dict[int, str] = {}
        with (
            (progress or Progress()).phase(f"verdicts of {self.name}", len(left)) as advance,
            self._store.adding() as add,
        ):
            for attempt in range(self.attempts):
                requests = [
                    # Seeds tell the attempts apart for a server that would repeat itself.
                    ChatRequest(asked[i], self.max_tokens, self.temperature, seed=attempt or None)
                    for i in left
                ]

                def keep(number: int, reply: ChatReply, left: list[int] = left) -> None:
                    key = keys[left[number]]
                    self._count(reply)
                    verdict = read(reply.text) if reply.finished else None
                    if verdict is None:
                        cut = "" if reply.finished else "a reply that was cut off: "
                        problems[key] = f"not one clear verdict in {cut}{reply.text[-200:]!r}"
                        return
                    problems.pop(key, None)
                    known[key] = verdict
                    add([_row(key, verdict, reply)])
                    advance(1)

                failed |= {left[n]: why for n, why in ask_all(self.server, requests, keep).items()}
                left = [i for i in left if keys[i] in problems]
        # One that the server failed at may have been answered at a later attempt.
        failed = {i: why for i, why in failed.items() if keys[i] not in known}
        if failed:
            reason = next(iter(failed.values()))
            raise RunError(
                f"{len(failed):,} of {len(asked):,} questions to the judge {self.name!r} were not "
                f"answered: {reason}. The other verdicts are kept; run again to go on."
            )
        return [
            (None, f"{problems[key]}, {self.attempts} times")
            if key in problems
            else (known[key], None)
            for key in keys
        ]

    def _count(self, reply: ChatReply) -> None:
        self.usage.requests += 1
        self.usage.input_tokens += reply.input_tokens or 0
        self.usage.output_tokens += reply.output_tokens or 0
        if self.price is not None:
            per_input, per_output = self.price
            tokens = self.usage.input_tokens * per_input + self.usage.output_tokens * per_output
            self.usage.cost = tokens / 1e6


def _row(key: str, verdict: str, reply: ChatReply) -> dict[str, Any]:
    counts = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
    return {"key": key, "verdict": verdict, "reply": reply.text, **counts}


def _text(score: float | None) -> str | None:
    return None if score is None else repr(score)


def _listed(spellings: Sequence[str]) -> str | None:
    return "\n".join(spellings) or None


def _sides(frame: pd.DataFrame) -> list[tuple[list[Turn], str]]:
    return [
        (json.loads(conversation), response)
        for conversation, response in zip(frame["conversation"], frame["response"], strict=True)
    ]

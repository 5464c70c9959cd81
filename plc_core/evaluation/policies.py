"""Who answers a benchmark, and by which decoding: a model on this machine, or behind a server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    LogitsProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from plc_core.data.dialogues import Turn
from plc_core.engine.models.load import model_identity
from plc_core.engine.sampling import (
    Response,
    generate_batch,
    generate_responses,
    generating,
    generation_config,
    response_of,
)
from plc_core.engine.tokens.templates import chat_format
from plc_core.engine.tokens.tokenized import prompt_ids
from plc_core.evaluation.chat_api import ChatReply, ChatRequest, ChatServer, ask_all
from plc_core.storage.cache import content_hash
from plc_core.storage.files import RunError

_PAGE = 256  # tokens to a block of the paged cache, transformers' default


@dataclass(frozen=True)
class Decoding:
    """How answers are decoded.

    Attributes:
        max_new_tokens: where an answer is cut off, its terminator included.
        temperature: 0 is greedy.
        top_p: of sampling, the share of the distribution that is kept.
        seed: of sampling. On this machine every prompt has random numbers of its own, so that no
            answer depends on the others of its batch, or on where a run was cut off.
        shared: the fingerprint of prompts that share one stream of random numbers instead, and
            are sampled at temperature 1 from the whole distribution, all of them or none.
    """

    max_new_tokens: int = 1024
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    shared: str = ""

    def __post_init__(self) -> None:
        sane = self.max_new_tokens >= 1 and self.temperature >= 0 and 0 < self.top_p <= 1
        if not sane:
            raise RunError(
                f"{self}: max_new_tokens is 1 or more, temperature 0 or more, top_p in (0, 1]."
            )

    @property
    def label(self) -> str:
        """Its name in tables: "greedy", or what sampling depends on."""
        if self.temperature == 0:
            return "greedy"
        if self.shared:
            return "sampled"
        kept = f" p={self.top_p:g}" if self.top_p < 1 else ""
        return f"sampled T={self.temperature:g}{kept} seed={self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """What decides an answer: greedy decoding knows no seed."""
        greedy = {"max_new_tokens": self.max_new_tokens, "temperature": 0.0}
        sampled = {name: value for name, value in asdict(self).items() if name != "shared" or value}
        return greedy if self.temperature == 0 else sampled


class OwnNumbers(LogitsProcessor):
    """Samples by inversion, with uniform numbers drawn for each row from its prompt and the seed.

    The distribution is that of sampling at the temperature inside the top share; all scores but
    the drawn token's become -inf, so that the greedy decoding around it takes that one.
    """

    def __init__(
        self, prompts: Sequence[list[int]], config: GenerationConfig, decoding: Decoding
    ) -> None:
        self.start, self.decoding = max(map(len, prompts)), decoding
        rows = [_uniforms(ids, decoding.seed, config.max_new_tokens) for ids in prompts]
        self.uniforms = torch.from_numpy(np.stack(rows))  # [rows, steps]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores: [rows, vocabulary]."""
        step = input_ids.shape[1] - self.start
        shares = (scores.float() / self.decoding.temperature).softmax(-1).double()
        order = None
        if self.decoding.top_p < 1:
            shares, order = shares.sort(descending=True)
            shares = shares * (shares.cumsum(-1) - shares < self.decoding.top_p)
        sums = shares.cumsum(-1)
        aims = self.uniforms[:, step : step + 1].to(sums.device) * sums[:, -1:]
        token = torch.searchsorted(sums, aims, right=True).clamp(max=scores.shape[-1] - 1)
        token = token if order is None else order.gather(1, token)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


def _uniforms(ids: list[int], seed: int, count: int) -> np.ndarray:
    digest = hashlib.sha256(json.dumps([seed, ids]).encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16])))
    return generator.random(count)


class Answer(NamedTuple):
    """An answer, whether it came to its own end, and its tokens (None: the server did not say).

    `ids` are the tokens themselves, which a text does not always give back; a server has none.
    """

    text: str
    finished: bool
    tokens: int | None
    ids: list[int] | None = None


Done: TypeAlias = Callable[[Sequence[int], Sequence[Answer]], None]
"""Takes the numbers and answers of a batch as it ends."""


class Policy(Protocol):
    """What `evaluation.generate` asks."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides its answers beside the conversation and the decoding."""

    def key(self, conversation: Sequence[Turn]) -> str:
        """A name for what the policy sees of a conversation."""

    def answer(
        self, conversations: Sequence[Sequence[Turn]], decoding: Decoding, done: Done
    ) -> dict[int, str]:
        """Answer the conversations; those that could not be, by their number, with the reason."""


class LocalPolicy:
    """A model on this machine; LoRA adapters stay beside the weights that they change.

    Args:
        model: on the device where it is to run.
        tokenizer: with a chat template.
        batch_size: prompts answered together, of like length.
        continuous: transformers' continuous batching over a paged cache, for greedy decoding. It
            gives the same tokens. On two CPU cores it took 14 s for the world's 805 prompts where
            batches of like length took 3 s, so it has to be asked for.

    Raises:
        DataError: where the tokenizer has no chat template.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        batch_size: int = 128,
        continuous: bool = False,
    ) -> None:
        chat_format(tokenizer)
        self.model, self.tokenizer = model, tokenizer
        self.batch_size, self.continuous = batch_size, continuous
        self.identity: dict[str, Any] = {
            "model": model_identity(model),
            "adapters": _adapters(model),
            "tokenizer": _vocabulary(tokenizer),
        }

    def key(self, conversation: Sequence[Turn]) -> str:
        return content_hash(prompt_ids(self.tokenizer, conversation))

    def answer(
        self, conversations: Sequence[Sequence[Turn]], decoding: Decoding, done: Done
    ) -> dict[int, str]:
        if self.continuous and decoding.temperature:
            raise RunError("Continuous batching is for greedy decoding here.")
        prompts = [prompt_ids(self.tokenizer, turns) for turns in conversations]
        most = decoding.max_new_tokens
        if decoding.shared and decoding.temperature:
            everyone = generate_responses(
                self.model, self.tokenizer, prompts, "sampled", most, decoding.seed, self.batch_size
            )
            done(range(len(prompts)), list(map(_answer, everyone)))
            return {}
        rooms = [min(most, self._room(ids)) for ids in prompts]
        order = sorted(range(len(prompts)), key=lambda i: (rooms[i], len(prompts[i])))
        wide = [i for i in order if rooms[i] == most]
        # What a prompt near the model's longest leaves is its own, and must not cut others short.
        groups: list[tuple[list[int], int]] = [([i], rooms[i]) for i in order if rooms[i] < most]
        size = self.batch_size * (4 if self.continuous else 1)
        groups += [(wide[at : at + size], most) for at in range(0, len(wide), size)]
        for members, room in groups:
            if room < 1:
                done(members, [Answer("", False, 0, [])])
                continue
            config = generation_config(self.model, self.tokenizer, room)
            rows = self._generated([prompts[i] for i in members], config, decoding)
            responses = [response_of(self.tokenizer, row, config.eos_token_id) for row in rows]
            done(members, list(map(_answer, responses)))
        return {}

    def _room(self, ids: list[int]) -> int:
        """How many tokens the model can write behind a prompt."""
        config = self.model.config.get_text_config()
        longest = getattr(config, "max_position_embeddings", None)
        return 2**31 if not isinstance(longest, int) else max(0, longest - len(ids))

    def _generated(
        self, prompts: list[list[int]], config: GenerationConfig, decoding: Decoding
    ) -> list[list[int]]:
        with generating(self.model, config):
            if self.continuous:
                return self._paged(prompts, config)
            own = [OwnNumbers(prompts, config, decoding)] if decoding.temperature else []
            return generate_batch(self.model, prompts, config, logits_processor=own)

    def _paged(self, prompts: list[list[int]], config: GenerationConfig) -> list[list[int]]:
        # Blocks for as many prompts as a batch would hold: left to itself, the cache takes what
        # memory there is, and on a CPU half a minute to fill it.
        blocks = sorted(-(-(len(p) + config.max_new_tokens) // _PAGE) for p in prompts)
        paged = ContinuousBatchingConfig(
            page_size=_PAGE,
            num_blocks=sum(blocks[-self.batch_size :]) + 1,
            max_batch_tokens=max(1024, max(map(len, prompts))),
        )
        outputs = self.model.generate_batch(  # type: ignore[operator]
            inputs=prompts, generation_config=config, continuous_batching_config=paged
        )
        # Requests are numbered in their order, and may end in any.
        rows = sorted(outputs.values(), key=lambda out: int(out.request_id.rpartition("_")[2]))
        if len(rows) != len(prompts) or any(out.error for out in rows):
            reason = next((out.error for out in rows if out.error), "answers are missing")
            raise RunError(f"Continuous batching failed ({reason}); use continuous=False.")
        return [list(out.generated_tokens) for out in rows]


def _answer(response: Response) -> Answer:
    return Answer(response.text, response.finished, len(response.ids), response.ids)


class ServerPolicy:
    """A model behind an OpenAI-compatible server, or the Anthropic API.

    Args:
        server: who is asked.
        weights: what names the weights behind the server's model, as "my-run, checkpoint-400". A
            server says only the model's name, which may stay when the weights change; answers
            are kept under this.
    """

    def __init__(self, server: ChatServer, weights: str) -> None:
        self.server = server
        self.identity = {"server": server.identity, "weights": weights}

    def key(self, conversation: Sequence[Turn]) -> str:
        return content_hash(list(conversation))

    def answer(
        self, conversations: Sequence[Sequence[Turn]], decoding: Decoding, done: Done
    ) -> dict[int, str]:
        sampling = {"top_p": decoding.top_p, "seed": decoding.seed} if decoding.temperature else {}
        requests = [
            ChatRequest(turns, decoding.max_new_tokens, decoding.temperature, **sampling)  # type: ignore[arg-type]
            for turns in conversations
        ]

        def keep(number: int, reply: ChatReply) -> None:
            done([number], [Answer(reply.text.strip(), reply.finished, reply.output_tokens)])

        return ask_all(self.server, requests, keep)


def _adapters(model: PreTrainedModel | PeftModel) -> dict[str, Any]:
    """What an adapter computes beside its weights: rank, scale and the like, without places."""
    if not isinstance(model, PeftModel):
        return {}
    ignored = {"base_model_name_or_path", "inference_mode", "revision", "peft_version"}
    found = {name: config.to_dict() for name, config in model.peft_config.items()}
    return {
        name: {k: _plain(v) for k, v in config.items() if k not in ignored}
        for name, config in found.items()
    }


def _plain(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)


def _vocabulary(tokenizer: PreTrainedTokenizerBase) -> str:
    """16 hex digits of what turns ids to text; the ids themselves are in the key of an answer."""
    vocabulary = sorted(tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()[:16]

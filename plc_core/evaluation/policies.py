"""Who answers a benchmark: a model on this machine, or one behind an OpenAI-compatible server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from peft import PeftModel
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from plc_core.data.dialogues import Turn
from plc_core.engine.models import model_identity
from plc_core.engine.sampling import (
    Response,
    generate_batch,
    generating,
    generation_config,
    response_of,
)
from plc_core.engine.sampling import generate as sample_together
from plc_core.engine.templates import chat_format
from plc_core.engine.tokens import prompt_ids
from plc_core.evaluation.chat_api import ChatReply, ChatRequest, ChatServer, ask_all
from plc_core.evaluation.decoding import Decoding, OwnNumbers
from plc_core.files import RunError
from plc_core.storage import content_hash

_PAGE = 256  # tokens to a block of the paged cache, transformers' default


class Answer(NamedTuple):
    """An answer, whether it came to its own end, and its tokens (None: the server did not say).

    `ids` are the tokens themselves, which a text does not always give back; a server has none.
    """

    text: str
    finished: bool
    tokens: int | None
    ids: list[int] | None = None


class Policy(Protocol):
    """What `evaluation.generate` asks."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides its answers beside the conversation and the decoding."""

    def key(self, conversation: Sequence[Turn]) -> str:
        """A name for what the policy sees of a conversation."""

    def answer(
        self,
        conversations: Sequence[Sequence[Turn]],
        decoding: Decoding,
        done: Callable[[Sequence[int], Sequence[Answer]], None],
    ) -> dict[int, str]:
        """Answer the conversations; `done` takes the numbers and answers of each batch as it ends.

        Returns the numbers of those that could not be answered, with the reason.
        """


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
        self.identity = {
            "model": model_identity(model),
            "adapters": _adapters(model),
            "tokenizer": _vocabulary(tokenizer),
        }

    def key(self, conversation: Sequence[Turn]) -> str:
        return content_hash(prompt_ids(self.tokenizer, conversation))

    def answer(
        self,
        conversations: Sequence[Sequence[Turn]],
        decoding: Decoding,
        done: Callable[[Sequence[int], Sequence[Answer]], None],
    ) -> dict[int, str]:
        if self.continuous and decoding.temperature:
            raise RunError("Continuous batching is for greedy decoding here.")
        prompts = [prompt_ids(self.tokenizer, turns) for turns in conversations]
        most = decoding.max_new_tokens
        if decoding.shared and decoding.temperature:
            everyone = sample_together(
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
        self,
        conversations: Sequence[Sequence[Turn]],
        decoding: Decoding,
        done: Callable[[Sequence[int], Sequence[Answer]], None],
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

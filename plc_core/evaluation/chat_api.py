"""Chat servers: the OpenAI-compatible API and the Anthropic messages API, over plain HTTP."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import httpx

from plc_core.storage.files import RunError

_VERSION = "2023-06-01"  # of the Anthropic API
_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_AGAIN = {408, 409, 425, 429}  # beside all of 500 and above, 529 (overloaded) among them
_HOPELESS = {401, 403, 404}  # the key, the address or the model: no other request fares better
_LONGEST_WAIT = 60.0  # seconds between two attempts
_SECRET = 16  # characters of the shortest key that guards anything
_MOST = 2**24  # bytes of an answer; a million tokens are a third of it
_DOWN = 3  # requests in a row that failed for good: the server is down

Message = Mapping[str, str]


@dataclass(frozen=True)
class ChatServer:
    """A model behind an API. The key comes from the environment, and is kept nowhere.

    Attributes:
        model: its name there.
        base_url: of the OpenAI-compatible API it ends with /v1, as http://127.0.0.1:8000/v1.
        api: which of the two it speaks.
        key_variable: the environment variable that holds the key; a server of one's own needs
            none.
        concurrency: requests under way at once.
        attempts: at one request, before it counts as failed.
        timeout: seconds for one whole answer.
        pause: seconds before the second attempt, doubled at each further one; what the server asks
            for in `retry-after` comes first.
        limit_field: how the OpenAI-compatible API spells the limit of tokens: OpenAI's own newer
            models ask for max_completion_tokens.
    """

    model: str
    base_url: str = "https://api.anthropic.com"
    api: Literal["openai", "anthropic"] = "anthropic"
    key_variable: str | None = None
    concurrency: int = 8
    attempts: int = 6
    timeout: float = 300.0
    pause: float = 1.0
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"

    def __post_init__(self) -> None:
        if self.api not in _KEYS:
            raise RunError(f"api is 'openai' or 'anthropic', not {self.api!r}.")
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RunError(f"{self.base_url!r} is no address of a server.")
        if parts.username or parts.password or parts.query:
            raise RunError(
                "The address of a server holds no user, password or query, as it is written to "
                "the record of a run. Give the key in the environment."
            )
        if min(self.concurrency, self.attempts) < 1:
            raise RunError("concurrency and attempts are 1 or more.")

    @property
    def identity(self) -> dict[str, str]:
        """What decides its answers, for names and records."""
        return {"model": self.model, "base_url": self.base_url.rstrip("/"), "api": self.api}


class ChatRequest(NamedTuple):
    """Messages, of which the first may be the system's, and how to answer them."""

    messages: Sequence[Message]
    max_tokens: int
    temperature: float | None = None  # None leaves it to the server, as some models demand
    top_p: float | None = None
    seed: int | None = None  # the Anthropic API takes none


class ChatReply(NamedTuple):
    """An answer, whether it came to its own end, and the tokens that the server counted."""

    text: str
    finished: bool
    input_tokens: int | None
    output_tokens: int | None


class _FailedError(Exception):
    """One attempt that failed; `wait` is what the server asked for, in seconds."""

    def __init__(self, reason: str, again: bool = True, wait: float | None = None) -> None:
        super().__init__(reason)
        self.again, self.wait = again, wait


def ask_all(
    server: ChatServer, requests: Sequence[ChatRequest], done: Callable[[int, ChatReply], None]
) -> dict[int, str]:
    """Ask the server all requests; returns those that failed for good, with the reason.

    Args:
        server: who is asked.
        requests: asked side by side, begun in their order.
        done: takes the number of a request and its reply as it comes, in the calling thread.

    Raises:
        RunError: where the key is missing or refused, the server does not know the model, or three
            requests in a row failed at every attempt. What was done is done.
    """
    session = _Session(server)
    failed: dict[int, str] = {}
    in_a_row = 0
    with httpx.Client(timeout=server.timeout, follow_redirects=False) as client:
        pool = ThreadPoolExecutor(server.concurrency)
        try:
            # No more than are under way at once, so that a stop leaves none behind in a queue.
            waiting = iter(enumerate(requests))
            running: dict[Future[ChatReply], int] = {}
            while True:
                while len(running) < server.concurrency and (item := next(waiting, None)):
                    running[pool.submit(session.ask, client, item[1])] = item[0]
                if not running:
                    return failed
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number = running.pop(future)
                    try:
                        reply = future.result()
                    except _FailedError as error:
                        failed[number] = str(error)
                        in_a_row += error.again
                        if in_a_row >= _DOWN:
                            raise RunError(
                                f"{server.base_url} does not answer: {in_a_row} requests in a row "
                                f"failed {server.attempts} times each, the last one with: "
                                f"{str(error).rstrip('.')}. "
                                "What was answered is kept; run again to go on."
                            ) from None
                    else:
                        in_a_row = 0
                        done(number, reply)
        finally:
            session.stop.set()
            # A request that hangs is left to its own timeout, as the caller has waited enough.
            pool.shutdown(wait=False, cancel_futures=True)


class _Session:
    def __init__(self, server: ChatServer) -> None:
        self.server = server
        self.stop = threading.Event()
        variable = server.key_variable or _KEYS[server.api]
        self.key = os.environ.get(variable, "").strip()
        if not self.key and (server.key_variable or server.api == "anthropic"):
            raise RunError(f"The environment variable {variable} is not set: it holds the key.")
        if not all("!" <= sign <= "~" for sign in self.key):
            raise RunError(
                f"The environment variable {variable} holds a sign that no key has, as white space "
                "or a letter beyond ASCII. Set it to the key alone."
            )
        base = server.base_url.rstrip("/")
        if server.api == "anthropic":
            self.url = f"{base}/v1/messages"
            self.headers = {"x-api-key": self.key, "anthropic-version": _VERSION}
        else:
            self.url = f"{base}/chat/completions"
            self.headers = {"authorization": f"Bearer {self.key}"} if self.key else {}

    def ask(self, client: httpx.Client, request: ChatRequest) -> ChatReply:
        """One reply, at whichever attempt it comes."""
        body = _body(self.server, request)
        for attempt in range(1, self.server.attempts + 1):
            try:
                return _reply(self.server.api, self._post(client, body))
            except _FailedError as error:
                if not error.again or attempt == self.server.attempts:
                    raise
                pause = error.wait or self.server.pause * 2 ** (attempt - 1)
                if self.stop.wait(min(pause, _LONGEST_WAIT)):
                    raise
        raise AssertionError("attempts is 1 or more")

    def _post(self, client: httpx.Client, body: dict[str, Any]) -> Any:
        deadline = time.monotonic() + self.server.timeout
        parts: list[bytes] = []
        size = 0
        try:
            with client.stream("POST", self.url, json=body, headers=self.headers) as reply:
                for part in reply.iter_bytes():
                    parts.append(part)
                    # httpx limits each read; a server that drips would never be given up.
                    if time.monotonic() > deadline:
                        raise _FailedError(f"no whole answer in {self.server.timeout:g} s")
                    size += len(part)
                    if size > _MOST:
                        raise _FailedError(f"an answer of more than {_MOST // 2**20} MiB")
        except httpx.HTTPError as error:  # no connection, a hang, half an answer
            said = f"{type(error).__name__} {error}".strip()
            raise _FailedError(said.replace(self.key, "…") if self.key else said) from None
        text = b"".join(parts)
        # Servers and proxies repeat the key, and what they say is shown and kept. An answer is left
        # as it is where the key is a word, as EMPTY for a server of one's own.
        if self.key and (reply.status_code != 200 or len(self.key) >= _SECRET):
            text = text.replace(self.key.encode(), "…".encode())
        if reply.status_code != 200:
            raise self._refusal(reply, text)
        try:
            return self._without_key(httpx.Response(200, content=text).json())
        except (ValueError, RecursionError):
            raise _FailedError(f"an answer that is no JSON: {text[:80]!r}") from None

    def _without_key(self, content: Any) -> Any:
        """What a server sent, where the key may have been spelled with escapes of JSON."""
        said = json.dumps(content)
        if len(self.key) < _SECRET or (own := json.dumps(self.key)[1:-1]) not in said:
            return content
        return json.loads(said.replace(own, "…"))

    def _refusal(self, reply: httpx.Response, text: bytes) -> Exception:
        code = reply.status_code
        said = " ".join(text[:300].decode("utf-8", "replace").split())
        if code in _HOPELESS:
            return RunError(f"{self.url} refused the request for {self.server.model!r}, {code}: "
                            f"{said}")  # fmt: skip
        again = code in _AGAIN or code >= 500
        return _FailedError(
            f"HTTP {code}: {said}", again, _seconds(reply.headers.get("retry-after"))
        )


def _seconds(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value else None
    except ValueError:  # a date, which no server here sends
        return None


def _body(server: ChatServer, request: ChatRequest) -> dict[str, Any]:
    messages = [dict(message) for message in request.messages]
    body: dict[str, Any] = {"model": server.model}
    if server.api == "anthropic":
        if messages and messages[0]["role"] == "system":
            body["system"] = messages.pop(0)["content"]
        body["max_tokens"] = request.max_tokens
    else:
        body[server.limit_field] = request.max_tokens
        if request.seed is not None:
            body["seed"] = request.seed
    body["messages"] = messages
    for name in ("temperature", "top_p"):
        if (value := getattr(request, name)) is not None:
            body[name] = value
    return body


def _reply(api: str, content: Any) -> ChatReply:
    """The reply in what a server sent; `_FailedError` where it is not of the API's form."""
    try:
        usage = content.get("usage") or {}
        if api == "anthropic":
            blocks = [block["text"] for block in content["content"] if block["type"] == "text"]
            text, ended = "".join(blocks), content["stop_reason"]
            counts = usage.get("input_tokens"), usage.get("output_tokens")
            finished = ended in ("end_turn", "stop_sequence", "refusal")
        else:
            choice = content["choices"][0]
            text, ended = choice["message"]["content"] or "", choice["finish_reason"]
            counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
            finished = ended in ("stop", "content_filter")
        if not isinstance(text, str):
            raise TypeError
    except (KeyError, IndexError, TypeError, AttributeError):
        raise _FailedError(
            f"an answer that is not of the API's form: {str(content)[:80]!r}"
        ) from None
    # A server may cut a pair of surrogates in two, and no file in UTF-8 holds a half.
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return ChatReply(whole, finished, *map(_count, counts))


def _count(value: Any) -> int | None:
    """A number of tokens; None where a server sends anything else."""
    return value if type(value) is int and 0 <= value < 2**40 else None

"""The client of chat servers, against servers on a socket that fail as real ones do."""

import threading
import time

import pytest

from plc_core.evaluation.chat_api import ChatRequest, ChatServer, ask_all
from plc_core.storage.files import RunError
from tests.chat_server import serving

KEY = "sk-secret-0123456789"
FAULTS = ["429", "500", "529", "malformed", "half", "hang", "other form"]


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def ask(server, texts=("hello",), **options):
    settings = {"api": "anthropic", "timeout": 60.0, "pause": 0.01} | options
    base = server.url + ("/v1" if settings["api"] == "openai" else "")
    replies = {}
    requests = [ChatRequest([{"role": "user", "content": text}], 16, 0.0) for text in texts]
    failed = ask_all(ChatServer("judge", base, **settings), requests, replies.__setitem__)
    return replies, failed


def echo(body):
    return body["messages"][-1]["content"].upper(), None


@pytest.mark.parametrize("api", ["anthropic", "openai"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_that_fails_once_is_tried_again(api, fault):
    with serving(api, echo, [fault]) as server:
        replies, failed = ask(server, api=api, timeout=2.0 if fault == "hang" else 60.0)
    assert not failed
    assert replies[0].text == "HELLO"
    assert replies[0].finished
    assert len(server.requests) == 2


def test_both_apis_are_spoken_as_documented():
    system = [{"role": "system", "content": "be fair"}, {"role": "user", "content": "x"}]
    with serving("anthropic", echo) as server:
        ask_all(ChatServer("m", server.url), [ChatRequest(system, 9)], lambda *_: None)
    ((path, headers),) = server.headers
    assert path == "/v1/messages"
    assert headers["x-api-key"] == KEY
    assert headers["anthropic-version"] == "2023-06-01"
    assert server.requests == [
        {"model": "m", "system": "be fair", "max_tokens": 9, "messages": system[1:]}
    ]
    with serving("openai", echo) as server:
        request = ChatRequest(system, 9, 0.7, 0.9, 3)
        ask_all(ChatServer("m", server.url + "/v1", "openai"), [request], lambda *_: None)
    ((path, headers),) = server.headers
    assert path == "/v1/chat/completions"
    assert "authorization" not in {name.lower() for name in headers}
    assert server.requests == [
        {"model": "m", "max_tokens": 9, "seed": 3, "messages": system}
        | {"temperature": 0.7, "top_p": 0.9}
    ]


def test_an_answer_that_was_cut_off_says_so():
    with serving("anthropic", lambda body: ("and then", "max_tokens")) as server:
        assert not ask(server)[0][0].finished
    with serving("openai", lambda body: ("and then", "length")) as server:
        assert not ask(server, api="openai")[0][0].finished


def test_what_the_server_asks_for_is_waited_for():
    with serving("anthropic", echo, ["429"]) as server:
        start = time.monotonic()
        ask(server, pause=0.0)
    assert time.monotonic() - start >= 0.05


def test_requests_are_under_way_side_by_side_and_no_more_than_allowed():
    four = threading.Barrier(4)

    def together(body):
        four.wait()
        return echo(body)

    with serving("anthropic", together) as server:
        replies, _ = ask(server, [str(n) for n in range(12)], concurrency=4)
    assert {n: reply.text for n, reply in replies.items()} == {n: str(n) for n in range(12)}
    assert server.most == 4


def test_a_request_that_the_server_refuses_fails_alone_and_at_once():
    with serving("anthropic", echo, ["400"]) as server:
        replies, failed = ask(server, ["a", "b", "c"], concurrency=1)
    assert list(replies) == [1, 2]
    assert "prompt is too long" in failed[0]
    assert KEY not in failed[0]
    assert len(server.requests) == 3


def test_a_wrong_key_ends_it_with_a_sentence_that_does_not_show_the_key():
    with (
        serving("anthropic", echo, ["401"]) as server,
        pytest.raises(RunError, match="refused the request for 'judge', 401") as caught,
    ):
        ask(server, ["a"] * 5, concurrency=1)
    assert KEY not in str(caught.value)
    assert len(server.requests) == 1


def test_a_server_that_is_down_is_not_asked_for_ever():
    with (
        serving("anthropic", echo, ["529"] * 100) as server,
        pytest.raises(RunError, match="does not answer: 3 requests in a row failed 2 times each"),
    ):
        ask(server, ["a"] * 50, concurrency=1, attempts=2)
    assert len(server.requests) == 6
    with pytest.raises(RunError, match="ConnectError"):
        ask(server, ["a"] * 5, attempts=1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"base_url": "https://me:secret@host/v1"}, "holds no user, password or query"),
        ({"base_url": "https://host/v1?api-key=secret"}, "holds no user, password or query"),
        ({"base_url": "host:8000"}, "no address of a server"),
        ({"api": "grpc"}, "api is 'openai' or 'anthropic'"),
        ({"attempts": 0}, "1 or more"),
    ],
)
def test_a_server_that_cannot_be_is_a_sentence(options, sentence):
    with pytest.raises(RunError, match=sentence):
        ChatServer("m", **options)


@pytest.mark.parametrize("key", ["sk-sec\nret", "sk sec ret", "sk-s\u00e9cret", "sk-\x7fsecret"])
def test_a_key_that_is_none_is_refused_and_not_shown(monkeypatch, key):
    """The HTTP library would show it in its own words, with the sign escaped."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    with serving("anthropic", echo) as server:
        with pytest.raises(RunError, match="ANTHROPIC_API_KEY holds a sign that no key") as caught:
            ask(server)
        assert not server.requests
    assert "sec" not in str(caught.value).replace("second", "")


def test_a_key_that_comes_back_is_not_passed_on(monkeypatch):
    with serving("anthropic", echo, ["malformed with the key"] * 2) as server:
        assert KEY not in str(ask(server, attempts=2)[1])
    with serving("anthropic", echo) as server:
        assert ask(server, [f"the key is {KEY.lower()}"])[0][0].text == "THE KEY IS " + KEY.upper()
    with serving("anthropic", lambda body: (f"you sent {KEY}", None)) as server:
        assert ask(server)[0][0].text == "you sent …"
    # A word in place of a key, for a server of one's own, must not change its answers.
    monkeypatch.setenv("ANTHROPIC_API_KEY", "EMPTY")
    with serving("anthropic", lambda body: ("THE SET IS EMPTY", None)) as server:
        assert ask(server)[0][0].text == "THE SET IS EMPTY"


def test_half_a_sign_in_an_answer_is_replaced():
    """A server may cut an emoji in two; no file could hold the half."""
    with serving("openai", lambda body: ("fine \ud83d", None)) as server:
        assert ask(server, api="openai")[0][0].text == "fine \ufffd"


def test_a_missing_key_names_its_variable(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    request = [ChatRequest([{"role": "user", "content": "x"}], 9)]
    with pytest.raises(RunError, match="ANTHROPIC_API_KEY is not set"):
        ask_all(ChatServer("m"), request, lambda *_: None)
    with pytest.raises(RunError, match="MY_KEY is not set"):
        ask_all(ChatServer("m", key_variable="MY_KEY"), request, lambda *_: None)

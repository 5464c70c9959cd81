"""Chat servers on the loopback address: the Anthropic messages format, and the OpenAI format.

They speak HTTP as the real ones do, on a socket, and give what goes wrong there on purpose.
"""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = {
    "429": (429, {"retry-after": "0.05"}, "rate_limit_error"),
    "500": (500, {}, "api_error"),
    "529": (529, {}, "overloaded_error"),
    "400": (400, {}, "prompt is too long"),
    "401": (401, {}, "invalid x-api-key"),
}


class Server(ThreadingHTTPServer):
    """Answers each request by `reply(body) -> (text, stop)`; `faults` come first, one a request."""

    daemon_threads = True

    def __init__(self, api, reply, faults=()):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api, self.faults, self.closing = api, list(faults), threading.Event()
        self._reply = reply
        self.requests, self.headers, self.lock = [], [], threading.Lock()
        self.most, self.now = 0, 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def reply(self, asked):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            return self._reply(asked)
        finally:
            with self.lock:
                self.now -= 1

    def handle_error(self, request, client_address):
        pass  # clients that gave up


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.server.requests.append(self.path)
        self.send(200, self.server.reply(self.path))

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with server.lock:
            server.requests.append(body)
            server.headers.append((self.path, dict(self.headers)))
            fault = server.faults.pop(0) if server.faults else None
        self.answer(body, fault)

    def answer(self, body, fault):
        if fault in FAULTS:
            status, headers, kind = FAULTS[fault]
            key = self.headers.get("x-api-key") or self.headers.get("authorization")
            said = f"{kind}: your key {key}"  # as real servers repeat it
            return self.send(status, json.dumps({"error": {"message": said}}), headers)
        if fault == "hang":
            return self.server.closing.wait()
        if fault == "malformed":
            return self.send(200, '{"content": [{"type": "te')
        if fault == "malformed with the key":
            return self.send(200, f"<html>you sent {self.headers.get('x-api-key')}")
        if fault == "other form":
            return self.send(200, '{"content": "text", "choices": []}')
        text, stop = self.server.reply(body)
        content = json.dumps(_form(self.server.api, text, stop))
        if fault == "half":
            self.send(200, content, cut=len(content) // 2)
            self.close_connection = True  # as when a server dies
            return None
        return self.send(200, content)

    def send(self, status, text, headers=None, cut=None):
        raw = text.encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(raw)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw[:cut])
        self.wfile.flush()


def _form(api, text, stop):
    if api == "anthropic":
        return {
            "type": "message",
            "content": [{"type": "text", "text": text}],
            "stop_reason": stop or "end_turn",
            "usage": {"input_tokens": 100, "output_tokens": 10},
        }
    return {
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": stop or "stop",
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": len(text.split()) + 1},
    }


@contextlib.contextmanager
def serving(api, reply, faults=()):
    server = Server(api, reply, faults)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()

"""A reference reader behind an OpenAI-compatible server, in a thread of a test or as a process.

As a process it takes text only, and lists its model under another name than it is asked for. Each
line of the journal is the digest of a prompt, the id of the process and the GPUs that it may use.
"""

import argparse
import json
import os
import threading
import time
from contextlib import suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rulerkit.generation.prompt_format import DIRECT
from rulerkit.generation.tasks import read_answer
from rulerkit.generation.tokenizers import load_tokenizer

PROBE = 16  # the tokens that requests ask for which only find out what the server takes


class ReaderServer(ThreadingHTTPServer):
    """`behave` may answer in place of the reader, with a status, headers and a body or with a
    function of the handler, or `amend` its answer; `seen` are the requests."""

    daemon_threads, block_on_close = True, False

    def __init__(self, tokenizer, adds_bos=False, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.tokenizer, self.adds_bos = tokenizer, adds_bos
        self.seen = []
        self.authorization = None
        self.at_once = self.most_at_once = 0
        self.behave = lambda body: None
        self.amend = lambda body, reply: None
        self.render = None
        self.health, self.base = 200, "/v1"
        self.listing = {"data": [{"id": "m", "object": "model", "owned_by": "tests"}]}
        self.lock = threading.Lock()
        self.released = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}{self.base}"

    @property
    def real(self):
        """The requests that hold a prompt of a task."""
        return [body for body in self.seen if body.get("max_tokens") != PROBE]

    def read(self, body):
        """The whole text that a model would see, and its tokens."""
        if "messages" not in body:
            prompt = body["prompt"]
            ids = prompt if isinstance(prompt, list) else self.tokenizer.encode(prompt)
            return self.tokenizer.decode(ids), len(ids) + self.adds_bos
        text = body["messages"][-1]["content"]
        return text, self.tokenizer.count(text) + self.adds_bos

    def answer(self, body):
        text, tokens = self.read(body)
        ids = self.tokenizer.encode(read_answer(text.replace(DIRECT, "")) or "")
        written = min(len(ids), body["max_tokens"])
        content = self.tokenizer.decode(ids[:written])
        choice = {"finish_reason": "length" if len(ids) > written else "stop"}
        if "messages" in body:
            choice["message"] = {"role": "assistant", "content": content}
        else:
            choice["text"] = content
        usage = {"prompt_tokens": tokens, "completion_tokens": written}
        usage["prompt_tokens_details"] = {"cached_tokens": min(128, tokens - 1)}
        return {"model": "m-0613", "choices": [choice], "usage": usage}


class Handler(BaseHTTPRequestHandler):
    """The addresses of the protocol."""

    protocol_version = "HTTP/1.1"
    server: ReaderServer

    def log_message(self, *_):
        """Nothing on the screen."""

    def do_GET(self):
        server, page = self.server, self.path.partition("?")[0]
        pages = {f"{server.base}/models": server.health}
        self.reply(pages.get(page, 404), {}, server.listing)

    def do_POST(self):
        server = self.server
        page = self.path.partition("?")[0].removeprefix(server.base)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if page == "/chat/completions/render" and server.render:
            ids = server.render(body)
            self.reply(200, {}, {"token_ids": ids})
            return
        if page not in ("/completions", "/chat/completions"):
            self.reply(404, {}, {"detail": "Not Found"})
            return
        with server.lock:
            server.seen.append(body)
            server.authorization = self.headers["Authorization"]
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            reaction = server.behave(body)
            if reaction is None:
                answer = server.answer(body)
                server.amend(body, answer)
                reaction = 200, {}, answer
        finally:
            with server.lock:
                server.at_once -= 1
        if callable(reaction):
            # What no status and no body can say: it writes to the connection itself.
            self.close_connection = True
            with suppress(OSError):
                reaction(self)
            return
        self.reply(*reaction)

    def reply(self, status, headers, body):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        try:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has hung up, as it may


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--key", default="")
    parser.add_argument("--journal", default=os.devnull)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--health", type=int, default=200)
    parser.add_argument("--die-after", type=int, default=-1)
    options = parser.parse_args()
    server = ReaderServer(load_tokenizer("builtin"), port=options.port)
    server.listing = {"data": [{"id": "served-under-another-name", "max_model_len": 16384}]}
    server.health = options.health

    def error(status, message):
        return status, {}, {"error": {"message": message}}

    def behave(body):
        if options.key and server.authorization != f"Bearer {options.key}":
            return error(401, "wrong key")
        if not isinstance(body.get("prompt"), str):
            return error(400, "prompt must be a string")
        if body["model"] != "served-under-another-name":
            return error(404, f"no model {body['model']}")
        if body["max_tokens"] != PROBE:
            time.sleep(options.pace)
            row = {"prompt": sha256(body["prompt"].encode()).hexdigest()[:16], "pid": os.getpid()}
            row["gpus"] = os.environ.get("CUDA_VISIBLE_DEVICES")
            with server.lock, open(options.journal, "a", encoding="utf-8") as journal:
                journal.write(json.dumps(row) + "\n")
            options.die_after -= 1
            if options.die_after == -1:
                print("RuntimeError: the card fell off the bus", flush=True)
                os._exit(3)
        return None

    server.behave = behave
    print("loading the weights", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

"""A small OpenAI-compatible server for tests: takes text only, counts no cached tokens, lists a
model under its own name.

    python -m tests.text_server --port 8000 --key K [--journal FILE] [--pace SECONDS]
    [--never-healthy] [--die-after N]

Answers as the reference reader does. Each line of the journal is the digest of a prompt, this
process's id and the GPUs that it may use.
"""

import argparse
import json
import os
import threading
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rulerkit.tasks import read_answer
from rulerkit.tokenizers import load_tokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--key", default="")
parser.add_argument("--journal", default=os.devnull)
parser.add_argument("--pace", type=float, default=0.0)
parser.add_argument("--never-healthy", action="store_true")
parser.add_argument("--die-after", type=int, default=0)
options = parser.parse_args()
tokenizer = load_tokenizer("builtin")
lock, answered = threading.Lock(), 0


class Handler(BaseHTTPRequestHandler):
    """`/health`, `/v1/models` and `/v1/completions`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Only answers are written down."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self.reply(503 if options.never_healthy else 200, {})
        else:
            self.reply(200, {"data": [{"id": "served-under-another-name", "max_model_len": 16384}]})

    def do_POST(self) -> None:
        global answered
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if options.key and self.headers["Authorization"] != f"Bearer {options.key}":
            return self.reply(401, {"error": {"message": "wrong key"}})
        if "messages" in body or not isinstance(body["prompt"], str):
            return self.reply(400, {"error": {"message": "prompt must be a string"}})
        if body["model"] != "served-under-another-name":
            return self.reply(404, {"error": {"message": f"no model {body['model']}"}})
        if body["max_tokens"] != 16:  # not a probe
            time.sleep(options.pace)
            with lock, open(options.journal, "a", encoding="utf-8") as journal:
                answered += 1
                digest = sha256(body["prompt"].encode()).hexdigest()[:16]
                row = {
                    "prompt": digest,
                    "pid": os.getpid(),
                    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
                }
                journal.write(json.dumps(row) + "\n")
            if options.die_after and answered > options.die_after:
                print("RuntimeError: the card fell off the bus", flush=True)
                os._exit(3)
        ids = tokenizer.encode(read_answer(body["prompt"]) or "")[: body["max_tokens"]]
        usage = {"prompt_tokens": tokenizer.count(body["prompt"]), "completion_tokens": len(ids)}
        choice = {"index": 0, "finish_reason": "stop", "text": tokenizer.decode(ids)}
        return self.reply(200, {"choices": [choice], "usage": usage})

    def reply(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


print("loading the weights", flush=True)
server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
server.daemon_threads = True
server.serve_forever()

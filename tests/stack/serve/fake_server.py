"""A stand-in for ``python -m sglang.launch_server``: says what SGLang says, and misbehaves as told.

The environment variable FAKE_SERVER holds a JSON object:
  die / hang: name of a step in which to end with exit code 3 / to stop for ever
  children: "meek" for a child, and one that leaves its session and whose parent is gone; "stubborn": it ignores SIGTERM
  garbage: bytes of binary noise without a newline written to the log in each step
  flap: how often health says yes, no, yes, no … before it stays
  answers: right, wrong, short (one verification pass too many) or nonsense
  pause: seconds each step takes
  port: "taken": does what uvicorn and SGLang do when they cannot listen
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from stack.synthetic.models import read_models

BEHAVIOUR = json.loads(os.environ.get("FAKE_SERVER", "{}"))
STEPS = {
    "import": "",
    "distributed": "[2026-01-01 00:00:00] Init torch distributed begin.",
    "weights": "[2026-01-01 00:00:00] Load weight begin. avail mem=100.00 GB",
    "memory": "[2026-01-01 00:00:00] Load weight end. elapsed=1.00 s, type=LlamaForCausalLM",
    "graphs": "[2026-01-01 00:00:00] Capture cuda graph begin. This can take up to several minutes.",
    "warmup": "INFO:     Application startup complete.",
}
ORPHAN = """
import os, signal, sys, time
if sys.argv[1:] == ["stubborn"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
if os.fork():
    os._exit(0)
os.setsid()
time.sleep(600)
"""


def option(name, default=None):
    words = sys.argv
    return words[words.index(name) + 1] if name in words else default


def step(name, line):
    if line:
        print(line, flush=True)
    if BEHAVIOUR.get("garbage"):
        sys.stdout.buffer.write(random.Random(1).randbytes(BEHAVIOUR["garbage"]).replace(b"\n", b"x"))
        sys.stdout.flush()
        print(flush=True)
    if BEHAVIOUR.get("die") == name:
        print('Traceback (most recent call last):\n  File "x.py", line 1, in <module>')
        print(f"RuntimeError: died in {name}", flush=True)
        sys.exit(3)
    while BEHAVIOUR.get("hang") == name:
        time.sleep(1)
    time.sleep(BEHAVIOUR.get("pause", 0.0))


class Handler(BaseHTTPRequestHandler):
    health = 0

    def log_message(self, *arguments):
        pass

    def reply(self, document, status=200):
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/health_generate":
            Handler.health += 1
            flapping = Handler.health <= 2 * BEHAVIOUR.get("flap", 0) and Handler.health % 2 == 0
            self.reply(b"", 503 if flapping else 200)
        elif self.path == "/get_server_info":
            self.reply(server_info())
        else:
            self.reply(b"", 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = BEHAVIOUR.get("answers", "right")
        if kind == "nonsense":
            self.reply(b"<html>not a model</html>")
            return
        if kind == "exit":
            os._exit(4)
        count = body["sampling_params"]["max_new_tokens"]
        folder = Path(option("--model-path")).parent
        models = read_models(folder)
        draft = option("--speculative-draft-model-path")
        steps = int(option("--speculative-num-steps", 0))
        known = models.predict(body["input_ids"][-1], count, steps, models.draft(Path(draft).name) if draft else None)
        tokens = list(known.tokens)
        if kind == "wrong":
            tokens[-1] = tokens[0]
        meta = {"completion_tokens": count, "e2e_latency": 0.1}
        if draft:
            passes = known.verifications + (kind == "short")
            meta |= {"spec_verify_ct": passes, "spec_accept_length": count / passes}
        self.reply({"text": "", "output_ids": tokens, "meta_info": meta})


def server_info():
    info = {
        "version": "0.0",
        "attention_backend": "triton",
        "internal_states": [{"effective_max_running_requests_per_dp": 48}],
    }
    for name in ("attention-backend", "speculative-algorithm", "speculative-num-steps", "cuda-graph-max-bs"):
        if option(f"--{name}"):
            info[name.replace("-", "_")] = option(f"--{name}")
    return info | BEHAVIOUR.get("info", {})


def main():
    if BEHAVIOUR.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if BEHAVIOUR.get("children"):
        subprocess.run([sys.executable, "-c", ORPHAN, BEHAVIOUR["children"]], check=False)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    for name, line in STEPS.items():
        step(name, line)
    if BEHAVIOUR.get("port") == "taken":
        where = (option("--host"), int(option("--port")))
        print(f"ERROR:    [Errno 98] error while attempting to bind on address {where}: address already in use")
        print("INFO:     Waiting for application shutdown.", flush=True)
        time.sleep(600)
    server = ThreadingHTTPServer((option("--host"), int(option("--port"))), Handler)
    if BEHAVIOUR.get("die") == "later":
        threading.Timer(0.5, os._exit, (5,)).start()
    print("The server is fired up and ready to roll!", flush=True)
    server.serve_forever()


main()

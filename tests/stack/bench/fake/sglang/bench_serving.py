"""Stands in for SGLang's load generator where that is not installed: same options, same result file, plain threads."""

import argparse
import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit


def request(options, text, tokens):
    started = time.perf_counter()
    row = {"length": tokens, "ttft": 0.0, "itl": [], "error": ""}
    try:
        connection = http.client.HTTPConnection(urlsplit(options.base_url).netloc, timeout=30)
        body = {"text": text, "sampling_params": {"max_new_tokens": tokens}, "stream": True}
        connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"HTTP {response.status}")
        last, seen = started, 0
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            now, total = time.perf_counter(), json.loads(line[6:])["meta_info"]["completion_tokens"]
            if not row["ttft"]:
                row["ttft"] = now - started
            elif total > seen:
                row["itl"] += [(now - last) / (total - seen)] * (total - seen)
            last, seen = now, total
            row["length"] = total
    except (OSError, http.client.HTTPException) as error:
        row["error"] = f"{type(error).__name__}: {error}"
        row["length"] = 0
    return row


def main():
    parser = argparse.ArgumentParser()
    for name in ("backend", "base-url", "dataset-name", "dataset-path", "output-file", "tokenizer"):
        parser.add_argument(f"--{name}")
    for name in ("warmup-requests", "max-concurrency", "num-prompts", "seed", "sharegpt-output-len"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("output-details", "disable-tqdm"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    with open(options.dataset_path) as file:
        texts = [json.loads(line)["conversations"][0]["content"] for line in file]
    started = time.perf_counter()
    with ThreadPoolExecutor(options.max_concurrency) as pool:
        rows = list(pool.map(lambda text: request(options, text, options.sharegpt_output_len), texts))
    duration = time.perf_counter() - started
    document = {
        "duration": duration,
        "completed": sum(not row["error"] for row in rows),
        "output_lens": [row["length"] for row in rows],
        "ttfts": [row["ttft"] for row in rows],
        "itls": [row["itl"] for row in rows],
        "errors": [row["error"] for row in rows],
    }
    with open(options.output_file, "a") as file:
        file.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()

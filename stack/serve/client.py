"""What is asked of a running server over HTTP, and nothing it answers is trusted."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from abi_checks.errors import SourceError

_LARGEST_ANSWER = 16 << 20
"""Bytes; SGLang's /server_info is some ten kB."""
_HEALTH_SECONDS = 10.0
"""SGLang waits a second or more for a token before it answers /health_generate."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The server's answer to one request; ``verifications`` and ``accept_length`` only where it speculates."""

    tokens: tuple[int, ...]
    text: str
    verifications: int | None
    accept_length: float | None
    seconds: float | None


class Client:
    """One server. Every failure is a SourceError that names the URL."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def healthy(self) -> bool:
        """Whether the server has just produced a token."""
        try:
            with urllib.request.urlopen(f"{self.url}/health_generate", timeout=_HEALTH_SECONDS) as answer:
                return bool(answer.status == 200)
        except (OSError, http.client.HTTPException, ValueError):
            return False

    def server_info(self) -> dict[str, Any]:
        """The settings the server runs with (``/server_info``, before SGLang 0.5.10 ``/get_server_info``)."""
        try:
            return self._json("/server_info", None, 30.0)
        except _NotFoundError:
            return self._json("/get_server_info", None, 30.0)

    def generate(self, prompt: Sequence[int] | str, tokens: int, timeout: float) -> Generation:
        """Exactly ``tokens`` greedy tokens after a prompt of ids or text."""
        body: dict[str, object] = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
        body["sampling_params"] = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
        answer = self._json("/generate", body, timeout)
        meta = answer.get("meta_info")
        ids = answer.get("output_ids")
        if not isinstance(meta, dict) or not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise SourceError(
                f"{self.url}/generate: the answer lacks output_ids or meta_info; is this an SGLang server?"
            )
        passes = _number(meta.get("spec_verify_ct"))
        return Generation(
            tokens=tuple(ids),
            text=str(answer.get("text", "")),
            verifications=None if passes is None else int(passes),
            accept_length=_number(meta.get("spec_accept_length")),
            seconds=_number(meta.get("e2e_latency")),
        )

    def _json(self, path: str, body: object, timeout: float) -> dict[str, Any]:
        url = self.url + path
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                text = answer.read(_LARGEST_ANSWER + 1)
        except urllib.error.HTTPError as error:
            with error:
                detail = error.read(300).decode(errors="replace").strip()
            kind = _NotFoundError if error.code == 404 else SourceError
            raise kind(f"{url}: the server answers {error.code} {error.reason}: {detail}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise SourceError(f"{url}: no answer: {error}") from error
        if len(text) > _LARGEST_ANSWER:
            raise SourceError(f"{url}: the answer is longer than {_LARGEST_ANSWER >> 20} MiB; this is no SGLang server")
        try:
            document = json.loads(text)
        except ValueError as error:
            raise SourceError(f"{url}: the answer is not JSON: {text[:80]!r}") from error
        if not isinstance(document, dict):
            raise SourceError(f"{url}: the answer is not a JSON object: {text[:80]!r}")
        return document


class _NotFoundError(SourceError):
    pass


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

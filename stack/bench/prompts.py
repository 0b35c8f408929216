"""The prompts of a run, written as the file that the load generator reads.

``text`` is prose written for this package: a draft model's acceptance on random tokens says nothing about its
acceptance on language. ``random-ids`` is for load alone. A file of the user's is JSON Lines, ``{"prompt": "..."}``
each, or plain text with blank lines between prompts.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from abi_checks.errors import SourceError, UsageError

RANDOM_INPUT_TOKENS = 256
_ANSWER = "The rest of the text follows here, at the length that was asked for."
"""The generator drops conversations without an answer; its text is not sent."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Where prompts come from. ``texts`` is empty for random token ids."""

    name: str
    texts: tuple[str, ...]

    def label(self) -> str:
        """Name and content of the prompts, short enough for a table."""
        digest = hashlib.sha256("\0".join(self.texts).encode()).hexdigest()[:12]
        return f"{self.name} {digest}" if self.texts else f"{self.name}:{RANDOM_INPUT_TOKENS}"

    def numbered(self, requests: int, seed: int) -> list[str]:
        """So many texts, each with a number in front: all differ, so that a prefix cache serves none of them."""
        texts = list(self.texts)
        random.Random(seed).shuffle(texts)
        return [f"{seed * 1000 + number}. {texts[number % len(texts)]}" for number in range(requests)]

    def arguments(self, requests: int, output_tokens: int, seed: int, folder: Path) -> list[str]:
        """The load generator's options for one run; writes its prompt file into ``folder``."""
        common = ["--num-prompts", str(requests), "--seed", str(seed)]
        if not self.texts:
            tokens = ["--random-input-len", str(RANDOM_INPUT_TOKENS), "--random-output-len", str(output_tokens)]
            # A range ratio of 1 is "exactly this length"; the default draws lengths between 1 and the given one.
            return ["--dataset-name", "random-ids", *tokens, "--random-range-ratio", "1", *common]
        path = folder / "prompts.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for text in self.numbered(requests, seed):
                turns = [{"role": "user", "content": text}, {"role": "assistant", "content": _ANSWER}]
                file.write(json.dumps({"conversations": turns}) + "\n")
        options = ["--dataset-name", "custom", "--dataset-path", str(path)]
        return [*options, "--sharegpt-output-len", str(output_tokens), *common]


def packaged() -> Prompts:
    """The prose of this package."""
    text = files("stack.bench").joinpath("data/prompts.txt").read_text(encoding="utf-8")
    return Prompts("text", _paragraphs(text))


def random_ids() -> Prompts:
    """Random token ids."""
    return Prompts("random-ids", ())


def from_file(path: Path) -> Prompts:
    """Prompts of the user's."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{path}: cannot read the prompts: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: the prompts are not UTF-8 text: {error}") from error
    texts = _lines(text, path) if path.suffix in (".jsonl", ".json") else _paragraphs(text)
    if not texts:
        raise UsageError(f"{path}: holds no prompt; write one a paragraph, or JSON Lines with a 'prompt' each")
    return Prompts(f"file:{path.name}", texts)


def _paragraphs(text: str) -> tuple[str, ...]:
    return tuple(" ".join(block.split()) for block in text.split("\n\n") if block.strip())


def _lines(text: str, path: Path) -> tuple[str, ...]:
    texts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
            raise UsageError(f"{path}:{number}: expected an object with a text 'prompt'")
        texts.append(row["prompt"])
    return tuple(texts)

"""A byte-level BPE tokenizer in the ``tokenizer.json`` format, of any vocabulary size from 300 tokens up.

Ids 0 to 2 are specials, 3 to 258 the 256 bytes, the rest merges of letters. The letters that stand for the bytes are
those of GPT-2's byte-level alphabet: printable Latin-1 characters stand for themselves, every other byte b for the
next free code point from 256 on.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from abi_checks.errors import UsageError

SPECIALS = ("<s>", "</s>", "<pad>")
SMALLEST_VOCABULARY = 300

_LETTERS = "etaoinshrdlcumwfgypbvk"


@cache
def byte_alphabet() -> tuple[str, ...]:
    """The character that stands for each byte, by byte value."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = itertools.count(256)
    return tuple(chr(value) if value in printable else chr(next(spare)) for value in range(256))


def _merges() -> Iterator[tuple[str, str]]:
    """Pairs to merge, in rank order, without end: each joins an existing token and a letter, and none appears twice."""
    stems = list(_LETTERS)
    while True:
        longer = []
        for stem, letter in itertools.product(stems, _LETTERS):
            yield stem, letter
            longer.append(stem + letter)
        stems = longer


@cache
def ordinary_tokens(vocabulary: int) -> range | tuple[int, ...]:
    """Ids whose text is printable ASCII: what a synthetic model produces, so that its output is always valid text."""
    if vocabulary < SMALLEST_VOCABULARY:
        raise UsageError(f"a synthetic vocabulary needs at least {SMALLEST_VOCABULARY} tokens, not {vocabulary}")
    first_byte = len(SPECIALS)
    printable = range(first_byte + 0x20, first_byte + 0x7F)
    return (*printable, *range(first_byte + 256, vocabulary))


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into ``folder``."""
    merges = list(itertools.islice(_merges(), vocabulary - len(SPECIALS) - 256))
    words = [*SPECIALS, *byte_alphabet(), *("".join(pair) for pair in merges)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, text in enumerate(SPECIALS)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {word: number for number, word in enumerate(words)},
            "merges": [list(pair) for pair in merges],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[0],
        "eos_token": SPECIALS[1],
        "pad_token": SPECIALS[2],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")

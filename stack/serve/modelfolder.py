"""Whether a model folder is whole and its weights are those that its configuration announces.

Only headers are read. A server finds the same faults after minutes, and some of them not at all.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from abi_checks.errors import SourceError

_LARGEST_HEADER = 100 << 20
"""Bytes; the limit of the safetensors format."""


def check_model_folder(folder: Path) -> None:
    """Raise SourceError with the first fault found."""
    config = _json(folder / "config.json", "the model's configuration")
    shapes: dict[str, tuple[int, ...]] = {}
    for name in _weight_files(folder):
        shapes |= _header(folder / name)
    text = config.get("text_config", config)
    if not isinstance(text, dict):
        raise SourceError(f"{folder / 'config.json'}: 'text_config' is not an object")
    vocabulary, hidden = text.get("vocab_size"), text.get("hidden_size")
    for name, shape in shapes.items():
        if name.endswith("embed_tokens.weight") and shape != (vocabulary, hidden):
            raise SourceError(
                f"{folder}: config.json has an embedding of {vocabulary} x {hidden} "
                f"(vocab_size x hidden_size), the weights {' x '.join(map(str, shape))}: one is of another model"
            )
    layers = {int(part) for name in shapes for part in _layer_number(name)}
    announced = text.get("num_hidden_layers")
    if layers and (layers != set(range(len(layers))) or len(layers) < (announced or 0)):
        raise SourceError(
            f"{folder}: config.json announces {announced} layers and the weights have {len(layers)}: "
            f"the folder is incomplete, or config.json is of another model"
        )


def check_pair(target: Path, draft: Path) -> None:
    """Raise SourceError where an EAGLE-3 draft was made for another target: hidden size or vocabulary differ."""
    document = _json(draft / "config.json", "the draft's configuration")
    if not str((document.get("architectures") or [""])[0]).endswith("Eagle3"):
        return
    config = _json(target / "config.json", "the target's configuration")
    text = config.get("text_config", config)
    pairs = {
        "hidden size": (text.get("hidden_size"), document.get("target_hidden_size", document.get("hidden_size"))),
        "vocabulary": (text.get("vocab_size"), document.get("vocab_size")),
    }
    for what, (wanted, found) in pairs.items():
        if wanted != found:
            raise SourceError(
                f"{draft}: this draft is made for a target of {what} {found}, and {target} has {wanted}; "
                f"use the draft trained for this target"
            )


def _layer_number(name: str) -> list[str]:
    """The number of the language model's layer that a tensor belongs to, if any."""
    before, found, after = name.partition("model.layers.")
    return [after.split(".")[0]] if found and "vision" not in before and after.split(".")[0].isdigit() else []


def _weight_files(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        names = sorted(file.name for file in folder.glob("*.safetensors"))
        if not names:
            raise SourceError(f"{folder}: there are no *.safetensors files in it; is this a model folder?")
        return names
    weight_map = _json(index, "the index of the weights").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceError(f"{index}: has no 'weight_map'; the folder is incomplete, fetch it again")
    names = sorted({str(name) for name in weight_map.values()})
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise SourceError(
            f"{folder}: {len(missing)} of {len(names)} weight files are missing, {missing[0]} first; fetch it again"
        )
    return names


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a safetensors file whose length is what its header says."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
            if length > min(size - 8, _LARGEST_HEADER):
                raise SourceError(f"{path}: is cut short within its header, or no safetensors file; fetch it again")
            header = json.loads(file.read(length))
        tensors = {name: row for name, row in header.items() if name != "__metadata__"}
        end = max((row["data_offsets"][1] for row in tensors.values()), default=0)
        shapes = {name: tuple(row["shape"]) for name, row in tensors.items()}
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise SourceError(
            f"{path}: its header is not that of a safetensors file ({error!r}); fetch it again"
        ) from error
    if size != 8 + length + end:
        raise SourceError(f"{path}: has {size} bytes and its header announces {8 + length + end}; fetch it again")
    return shapes


def _json(path: Path, what: str) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"{path}: {what} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SourceError(f"{path}: {what} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise SourceError(f"{path}: {what} is not a JSON object")
    return document

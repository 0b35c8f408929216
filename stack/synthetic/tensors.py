"""bfloat16 tensors made block by block, and the safetensors file that takes them.

Nothing here holds a whole tensor in memory, so a shard of any size is written at the speed of the disk and no GPU or
array library is needed. The file format is that of https://github.com/huggingface/safetensors: the header's length as
a little-endian 64-bit number, the header as JSON, then the data back to back.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 1 << 21
"""Bytes written at a time."""
_ITEM_SIZES = {"BF16": 2, "F32": 4, "I64": 8}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor whose bytes come in blocks; ``dtype`` is the safetensors name (BF16, F32, I64)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: Callable[[], Iterator[bytes]]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * _ITEM_SIZES[self.dtype]


def bf16(value: float) -> bytes:
    """The bfloat16 nearest to ``value`` (ties to even), little-endian."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return struct.pack("<H", (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


def constant(name: str, shape: tuple[int, ...], value: float) -> Tensor:
    """Every entry the same."""
    item = bf16(value)

    def blocks() -> Iterator[bytes]:
        left = math.prod(shape)
        while left:
            count = min(left, _BLOCK // 2)
            yield item * count
            left -= count

    return Tensor(name, "BF16", shape, blocks)


def noise(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Small random entries: either sign, magnitude from 2^-7 up to 2^-5.

    One block is drawn and repeated: the values matter to nobody, only that they are neither zero nor regular, because
    a GPU multiplies zeros faster and cooler than numbers.
    """

    def blocks() -> Iterator[bytes]:
        left = math.prod(shape) * 2
        generator = random.Random(f"{seed} {name}")
        tile = bytearray(min(left, _BLOCK))
        # A bfloat16's high byte is the sign and the upper exponent bits, its low byte the last exponent bit and the
        # mantissa: 0x3C00 is 2^-7 and 0x3CFF just under 2^-5.
        tile[0::2] = generator.randbytes(len(tile) // 2)
        tile[1::2] = generator.randbytes(len(tile) // 2).translate(bytes(0x3C | (byte & 0x80) for byte in range(256)))
        while left:
            count = min(left, len(tile))
            yield bytes(tile[:count])
            left -= count

    return Tensor(name, "BF16", shape, blocks)


def sparse(name: str, shape: tuple[int, int], rows: Callable[[int], Mapping[int, float]]) -> Tensor:
    """A matrix of zeros but for ``rows(row)``: column → value."""
    height, width = shape
    return Tensor(name, "BF16", shape, lambda: (_row(width, rows(number)) for number in range(height)))


def equal_rows(name: str, shape: tuple[int, int], row: Mapping[int, float]) -> Tensor:
    """A matrix whose rows are all the same: zeros but for ``row``, column → value."""
    height, width = shape
    return Tensor(name, "BF16", shape, lambda: itertools.repeat(_row(width, row), height))


def _row(width: int, values: Mapping[int, float]) -> bytes:
    row = bytearray(width * 2)
    for column, value in values.items():
        row[column * 2 : column * 2 + 2] = bf16(value)
    return bytes(row)


def zeros_int64(name: str, length: int) -> Tensor:
    """A vector of zeros of 64-bit integers."""
    return Tensor(name, "I64", (length,), lambda: iter((bytes(8 * length),)))


def zeros_float32(name: str, length: int) -> Tensor:
    """A vector of zeros of 32-bit floats."""
    return Tensor(name, "F32", (length,), lambda: iter((bytes(4 * length),)))


def write_shards(folder: Path, shards: Sequence[Sequence[Tensor]]) -> int:
    """Write one safetensors file a shard, and the index where there are several. Returns the bytes of all tensors."""
    total = 0
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else "model.safetensors"
        _write_safetensors(folder / name, tensors)
        weight_map.update({tensor.name: name for tensor in tensors})
        total += sum(tensor.size for tensor in tensors)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
    return total


def _write_safetensors(path: Path, tensors: Iterable[Tensor]) -> None:
    tensors = list(tensors)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": (offset, offset + tensor.size),
        }
        offset += tensor.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for tensor in tensors:
            for block in tensor.blocks():
                file.write(block)

"""A stack of two tiny wheels that is built without any network: a ``torch`` that no index has, and a helper."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stack.definition import StackDefinition, load_definition
from stack.files import write_text
from stack.lock import inputs_digest
from stack.lockfile import Lock, LockedDistribution

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def make_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str | bytes], requires: tuple[str, ...] = ()
) -> Path:
    """Write a pure wheel with these files (path → text); the same input gives the same bytes."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {r}\n" for r in requires
    )
    content: dict[str, bytes] = {path: _bytes(data) for path, data in files.items()}
    content |= {
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tiny\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in content.items())
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in content.items():
            archive.writestr(zipfile.ZipInfo(member), data)
    return path


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def sha256(path: Path) -> str:
    """The file's sha256 in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class TinyStack:
    """The files of a tiny stack; ``definition`` is its path, and its lock lies beside it."""

    definition: Path
    wheelhouse: Path

    def load(self) -> StackDefinition:
        """The definition as the product reads it."""
        return load_definition(str(self.definition))

    def arguments(self, prefix: Path) -> list[str]:
        """The command line that builds it."""
        where = ["--prefix", str(prefix), "--wheelhouse", str(self.wheelhouse)]
        return ["build", "--stack", str(self.definition), "--python", PYTHON, *where]


def make_tiny_stack(
    folder: Path,
    *,
    name: str = "tiny",
    helper_files: Mapping[str, str | bytes] | None = None,
    torch_requires: tuple[str, ...] = ("helper==1.0",),
    stated_requires: tuple[str, ...] = ("helper==1.0",),
    extra: str = "",
    torch_build: str = "2.9.1+cu130",
    more: tuple[Path, ...] = (),
) -> TinyStack:
    """Write wheels, definition and lock. ``more``: further wheels to lock; ``extra``: appended to the definition."""
    wheelhouse = folder / "wheelhouse"
    torch = make_wheel(
        wheelhouse, "torch", "2.9.1+cu130", {"torch/version.py": f"__version__ = '{torch_build}'\n"}, torch_requires
    )
    helper = make_wheel(wheelhouse, "helper", "1.0", helper_files or {"helper/__init__.py": "answer = 42\n"})
    path = folder / f"{name}.toml"
    path.write_text(
        f"""
name = "{name}"
summary = "two tiny wheels"
as_of = 2026-01-01
cuda = "13.0"
torch = "2.9.1+cu130"
machine = "x86_64"
glibc = "2.17"
disk_gib = 1
pythons = ["{PYTHON}"]
target_sm = ["120"]
[[requirements]]
pin = "helper==1.0"
reason = "to have one that an index carries"
[[wheels]]
name = "torch"
version = "2.9.1+cu130"
reason = "to have one that no index carries"
requires_dist = [{", ".join(f'"{text}"' for text in stated_requires)}]
[[wheels.files]]
pythons = ["{PYTHON}"]
file = "{torch.name}"
sha256 = "{sha256(torch)}"
[[wheels.uploads]]
date = "2026-01-01 10:00"
commit = "1111111"
tag = "py3"
sha256 = "{sha256(torch)}"
[[wheels.uploads]]
date = "2026-01-02 10:00"
commit = "2222222"
tag = "py3"
sha256 = "{hashlib.sha256(b"the second upload").hexdigest()}"
{extra}
"""
    )
    definition = load_definition(str(path))
    locked = [
        LockedDistribution("helper", "1.0", "", (sha256(helper),)),
        LockedDistribution("torch", "2.9.1+cu130", definition.wheels[0].files[0].url, (sha256(torch),)),
        *(LockedDistribution(*wheel.name.split("-")[:2], "", (sha256(wheel),)) for wheel in more),
    ]
    lock = Lock(name, PYTHON, inputs_digest(definition, PYTHON), tuple(sorted(locked, key=lambda item: item.name)))
    write_text(definition.lock_path(PYTHON), lock.text)
    return TinyStack(path, wheelhouse)

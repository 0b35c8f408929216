"""A small environment with two distributions, and a patch series for it, both made from nothing."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from stack.patching.environment import Environment, open_environment
from stack.patching.record import record_hash
from stack.patching.series import Series, load_all

ALPHA = {
    "alpha/__init__.py": b"",
    "alpha/one.py": b"first = 1\nsecond = 2\nthird = 3\nfourth = 4\nfifth = 5\n",
    # A carriage return and no line feed at the end: bytes that text-mode handling would lose.
    "alpha/two.py": b"text = 'a'\r\n\nkey = {9: 1}\nlast = None",
}
BETA = {"beta/core.py": b"majors = [9, 10]\n"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder`` by its relative path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def install(site_packages: Path, name: str, version: str, files: Mapping[str, bytes]) -> None:
    """Install files as a wheel installer does: the files, and a dist-info folder with RECORD."""
    lines = []
    for path, data in files.items():
        target = site_packages / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        lines.append(f"{path},{record_hash(data)},{len(data)}\n")
    info = site_packages / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("".join(lines) + f"{info.name}/RECORD,,\n")


def write_series(
    folder: Path, distribution: str, version: str, patches: Sequence[tuple[dict[str, object], dict]]
) -> None:
    """Write a series; each patch is (keys of its table that differ from the usual, path → (before, after))."""
    home = folder / f"{distribution}-{version}"
    home.mkdir(parents=True)
    text = f'distribution = "{distribution}"\nversion = "{version}"\n'
    for keys, files in patches:
        table = {"default": True, "summary": "s", "why": "w", "upstream": "u", "run": [], "not_run": [], **keys}
        text += "[[patch]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        diff = ""
        for path, (before, after) in files.items():
            text += f'[[patch.files]]\npath = "{path}"\nbefore = "{sha256(before)}"\nafter = "{sha256(after)}"\n'
            old, new = (data.decode().split("\n") for data in (before, after))
            lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm="", n=1)
            diff += f"diff --git a/{path} b/{path}\n" + "\n".join(lines) + "\n"
        (home / f"{table['name']}.patch").write_bytes(diff.encode())
    (home / "series.toml").write_text(text)


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """alpha 1.0 and beta 2.0 in a virtual environment's layout, and the manifest of their build beside it."""
    packages = tmp_path / "build" / "env" / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "build" / "env" / "pyvenv.cfg").write_text("home = /nowhere\n")
    (tmp_path / "build" / "manifest.json").write_text('{\n "stack": "x",\n "patches": []\n}\n')
    install(packages, "alpha", "1.0", ALPHA)
    install(packages, "beta_core", "2.0", BETA)
    return open_environment(tmp_path / "build")


@pytest.fixture
def series_folder(tmp_path: Path) -> Path:
    """``base`` changes two files, ``over`` changes one of them again, ``both`` spans the two distributions."""
    one, two = ALPHA["alpha/one.py"], ALPHA["alpha/two.py"]
    one_base = one.replace(b"second = 2\n", b"second = 22\nextra = 0\n")
    two_base = two.replace(b"{9: 1}", b"{9: 1, 12: 1}")
    one_over = one_base.replace(b"extra = 0\n", b"extra = 1\n").replace(b"fifth = 5\n", b"")
    init = b"fused = True\n"
    folder = tmp_path / "patches"
    write_series(
        folder,
        "alpha",
        "1.0",
        [
            ({"name": "base"}, {"alpha/one.py": (one, one_base), "alpha/two.py": (two, two_base)}),
            ({"name": "over"}, {"alpha/one.py": (one_base, one_over)}),
            (
                {"name": "both", "default": False, "together_with": ["beta-core-2.0"]},
                {"alpha/__init__.py": (b"", init)},
            ),
        ],
    )
    write_series(
        folder,
        "beta-core",
        "2.0",
        [
            (
                {"name": "both", "default": False, "together_with": ["alpha-1.0"]},
                {"beta/core.py": (BETA["beta/core.py"], b"majors = [9, 10, 12]\n")},
            )
        ],
    )
    return folder


@pytest.fixture
def all_series(series_folder: Path) -> tuple[Series, ...]:
    return load_all(series_folder)

"""Which C symbols belong to CPython's stable ABI, and since which release.

The list in ``data/stable_abi.txt`` is made from CPython's own (Misc/stable_abi.toml, as the ``abi3info`` package has
it), because importing that package would slow down every start. ``nox -s stable_abi`` writes it again.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

LIST = Path(__file__).parent / "data" / "stable_abi.txt"

Release = tuple[int, int]


@cache
def stable_symbols() -> dict[bytes, Release]:
    """Symbol → the release (major, minor) since which it is part of the stable ABI."""
    found = {}
    for line in LIST.read_bytes().splitlines():
        if not line.startswith(b"#"):
            release, _, name = line.partition(b" ")
            major, _, minor = release.partition(b".")
            found[name] = (int(major), int(minor))
    return found


def render() -> str:
    """The list's text, from the installed ``abi3info``."""
    import abi3info

    entries = [*abi3info.FUNCTIONS.values(), *abi3info.DATAS.values()]
    lines = sorted(f"{entry.added.major}.{entry.added.minor} {entry.symbol.name}" for entry in entries)
    return "# release since which the symbol is in CPython's stable ABI, and the symbol\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    LIST.write_text(render(), encoding="ascii")

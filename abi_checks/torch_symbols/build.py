"""Make the table of torch symbols again: ``python -m abi_checks.torch_symbols.build [--wheels FOLDER] [--reuse]``.

Each release that releases.toml lists is read from its wheel in FOLDER, or, where that is not given or lacks it, from
the index over ranges: up to 0.9 GB are transferred for each, and nothing is stored. With ``--reuse`` the releases that
the table has already, from the same wheels, are taken from it, so that adding one reads one wheel. The same releases
make the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tomllib
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from abi_checks.elf import read_elf
from abi_checks.elf_facts import ElfError
from abi_checks.errors import SourceError, UserError
from abi_checks.sources.index import resolve
from abi_checks.sources.members import MemberError, Store, open_member
from abi_checks.sources.wheel import open_bytes, read_wheel
from abi_checks.torch_symbols.table import FILE, Release, SymbolTable, covers, write_table

LIBRARIES = ("c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch_python", "torch")
"""The libraries that an extension of torch links, or finds in the process."""
PYTHON = (3, 12)


def read_releases() -> list[Release]:
    """The releases that the table is made of, oldest first."""
    document = tomllib.loads(Path(__file__).with_name("releases.toml").read_text(encoding="utf-8"))
    return [Release(**row) for row in document["releases"]]


def exported_names(location: str, filename: str) -> frozenset[bytes]:
    """The names the table covers that torch's libraries export, in one wheel (a path or a URL)."""
    wheel = read_wheel(location, filename)
    names: set[bytes] = set()
    with open_bytes(location) as source, Store() as store:
        for library in LIBRARIES:
            path = f"torch/lib/lib{library}.so"
            member = wheel.files.get(path)
            if member is None:
                raise SourceError(f"{filename}: has no {path}; is it torch's default wheel for Linux?")
            try:
                names.update(filter(covers, read_elf(open_member(source, member, store), path).defined))
            except (MemberError, ElfError) as error:
                raise SourceError(f"{filename}: {path}: {error}") from error
    return frozenset(names)


def locate(release: Release, wheels: Path | None) -> str:
    """A release's wheel: its path in ``wheels``, else its URL; raises SourceError where it is another file."""
    path = wheels / release.wheel if wheels else None
    if path and path.is_file():
        with path.open("rb") as file:
            location, sha256 = str(path), hashlib.file_digest(file, "sha256").hexdigest()
    else:
        link = resolve([f"torch=={release.version}"], PYTHON, hashes=[release.sha256])[0]
        location, sha256 = link.location, link.sha256
    if sha256 != release.sha256:
        raise SourceError(f"{location}: its sha256 is {sha256}, and releases.toml says {release.sha256}")
    return location


def build(releases: Iterable[Release], wheels: Path | None, target: Path, *, reuse: bool = False) -> None:
    """Read every release, two at a time, and write the table to ``target``; ``reuse`` what it has already."""
    releases = list(releases)
    known = SymbolTable(target) if reuse else None
    exported = {
        release.version: names for release in releases if known and (names := known.exported(release)) is not None
    }
    with ProcessPoolExecutor(2) as pool:
        unread = [release for release in releases if release.version not in exported]
        futures = [pool.submit(exported_names, locate(release, wheels), release.wheel) for release in unread]
        for release, future in zip(unread, futures, strict=True):
            exported[release.version] = future.result()
            print(f"torch {release.version}: {len(exported[release.version])} names", flush=True)
    write_table(target, releases, exported)
    print(f"{target}: {target.stat().st_size} bytes")


def main() -> int:
    """Rebuild the shipped table."""
    parser = argparse.ArgumentParser(prog="torch_symbols", description="Make the table of torch symbols again.")
    parser.add_argument(
        "--wheels", type=Path, help="a folder with wheels of torch, so that they need not be transferred"
    )
    parser.add_argument("--reuse", action="store_true", help="take from the table the releases that it has already")
    options = parser.parse_args()
    try:
        build(read_releases(), options.wheels, FILE, reuse=options.reuse)
    except UserError as error:
        print(f"torch_symbols: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

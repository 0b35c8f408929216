"""Small environments made for the tests: a venv's layout, compiled objects, and distributions with RECORD files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.abi_checks.fixtures import compile_object

SITE_PACKAGES = "lib/python3.12/site-packages"


class Environment:
    """A virtual environment's layout below ``root``, with the running interpreter linked into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = root / SITE_PACKAGES
        self.site.mkdir(parents=True)
        (root / "pyvenv.cfg").write_text("home = elsewhere\n")
        (root / "bin").mkdir()
        (root / "bin" / "python").symlink_to(Path(sys.executable).resolve())

    def add(self, name: str, version: str, paths: Sequence[Path] = (), requires: Sequence[str] = ()) -> None:
        """A distribution whose RECORD lists ``paths`` (below site-packages)."""
        folder = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {r}" for r in requires),
        ]
        (folder / "METADATA").write_text("\n".join(lines) + "\n\nAbout it.\n")
        rows = [str(path.relative_to(self.site)) + ",," for path in paths]
        (folder / "RECORD").write_text(
            "\n".join([*rows, f"{folder.name}/METADATA,,", f"{folder.name}/RECORD,,"]) + "\n"
        )

    def torch(self, version: str = "2.10.0", exports: str = "") -> None:
        """A torch with the libraries that ``import torch`` opens; ``exports`` is C++ source for libc10."""
        lib = self.site / "torch" / "lib"
        c10 = compile_object(lib / "libc10.so", exports, soname="libc10.so", language="c++")
        deps = compile_object(lib / "libtorch_global_deps.so", "", soname="libtorch_global_deps.so")
        module = compile_object(
            self.site / "torch" / "_C.cpython-312-x86_64-linux-gnu.so", "", "-Wl,-rpath,$ORIGIN/lib", needs=(c10,)
        )
        self.add("torch", version, [c10, deps, module])

    def extension(self, path: str, source: str, *flags: str, needs: Sequence[Path] = (), language: str = "c++") -> Path:
        """An object below site-packages."""
        return compile_object(self.site / path, source, *flags, needs=needs, language=language)

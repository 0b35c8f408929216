"""Where an environment keeps its packages, their versions and its build's manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from abi_checks.errors import UsageError


@dataclass(frozen=True, slots=True)
class Environment:
    """One site-packages folder, and the manifest.json of the build it belongs to, where there is one."""

    site_packages: Path
    manifest: Path | None

    def installed(self) -> dict[str, tuple[str, Path]]:
        """Normalised distribution name → version and dist-info folder, from the folders' names."""
        found: dict[str, tuple[str, Path]] = {}
        for folder in self.site_packages.glob("*.dist-info"):
            name, _, version = folder.name.removesuffix(".dist-info").partition("-")
            found[canonicalize_name(name)] = (version, folder)
        return found


def open_environment(path: Path) -> Environment:
    """The environment at ``path``: a virtual environment, a build folder with one in env/, or a folder of packages.

    Raises UsageError where ``path`` is none of these, a source checkout for instance.
    """
    root = path.resolve()
    if (root / "env" / "pyvenv.cfg").is_file():
        root = root / "env"
    candidates = [root, *sorted(root.glob("lib/python3*/site-packages"))]
    holders = [folder for folder in candidates if any(folder.glob("*.dist-info"))]
    if not holders:
        raise UsageError(
            f"{path}: no installed packages (no *.dist-info in it or in lib/python3*/site-packages). Name the virtual "
            "environment to patch; a source checkout can't be patched, because no RECORD lists its files"
        )
    if len(holders) > 1:
        raise UsageError(
            f"{path}: packages for more than one Python; name the folder to patch: {', '.join(map(str, holders))}"
        )
    manifest = root.parent / "manifest.json"
    return Environment(holders[0], manifest if manifest.is_file() else None)

"""A wheelhouse: everything that a host without a network needs to build a stack, in one folder or in numbered parts."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abi_checks.errors import SourceError, UsageError, UserError
from abi_checks.sources.lockfile import read_lock as read_any_lock
from stack import transfer
from stack.artifacts import Artifact, index_artifacts, lock_artifacts, resolve_pylock
from stack.definition import LOCKFILES, StackDefinition
from stack.download import Fetched, fetch_all
from stack.files import sha256_of, write_text
from stack.lockfile import Lock
from stack.parts import write_parts
from stack.progress import Progress
from stack.revision import CHECKOUT
from stack.uv import run_uv

TOOL_LOCK = LOCKFILES / "tool.txt"
"""The locked requirements of this project itself, with nox and what builds it."""

BUILD_SECONDS = 600.0

INSTALL = """\
Stack {stack} for Python {python}, as locked in {lock}.

On the target, which needs Python {python} with its venv module and no network, in this folder:

{join}  python{python} -m venv ~/cu130-stack-tool
  ~/cu130-stack-tool/bin/pip install --no-index --find-links tools cu130-stack nox
  ~/cu130-stack-tool/bin/cu130-stack build --stack {definition} --python {python} --wheelhouse .
{without}"""

VERIFY = "  python3 {script}\n"
JOIN = "  python3 {script} wheelhouse\n  cd wheelhouse\n"

LEFT_OUT = """
Left out, because the target has them: the wheels listed in WITHOUT. Copy them beside the others before the last step.
"""


@dataclass(frozen=True, slots=True)
class Made:
    """What a wheelhouse consists of: stack wheels left out, what was fetched, and the parts' number (0: a folder)."""

    without: int
    fetched: Fetched
    parts: int


def parse_size(text: str) -> int:
    """``60M`` in bytes; K, M and G are powers of 1024.

    :raises UsageError: another form, or less than 1 MiB
    """
    match = re.fullmatch(r"(\d+)([KMG])", text)
    size = int(match[1]) << {"K": 10, "M": 20, "G": 30}[match[2]] if match else 0
    if size < 1 << 20:
        raise UsageError(f"--split must be a size of 1M or more, such as 60M or 4G, not {text!r}")
    return size


def read_without(path: Path) -> dict[str, str]:
    """File name → sha256 ("" where the list has none) of wheels to leave out.

    :raises SourceError: the list cannot be read
    :raises UsageError: a line that is neither ``file.whl`` nor what sha256sum writes
    """
    found = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot read the list of wheels to leave out: {error}") from error
    for number, line in enumerate(lines, 1):
        match = re.fullmatch(r"(?:([0-9a-f]{64}) [ *])?(?:\S*/)?([^/\s]+\.whl)", line.strip())
        if match:
            found[match[2]] = match[1] or ""
        elif line.strip() and not line.startswith("#"):
            raise UsageError(f"{path}:{number}: {line!r} is neither the name of a wheel nor a line of sha256sum")
    return found


def make_wheelhouse(
    definition: StackDefinition,
    lock: Lock,
    out: Path,
    *,
    split: int | None,
    without: Mapping[str, str],
    mirrors: Mapping[str, str],
    progress: Progress,
) -> Made:
    """Write a wheelhouse to ``out``; files that lie there with the right hash are kept, so a second call resumes.

    With ``split`` (bytes), ``out`` gets parts of that size, and the wheels lie in ``out/.wheels`` until they are done.

    :raises UserError: naming what could not be had, or the room that is missing
    """
    if not (CHECKOUT / "pyproject.toml").is_file():
        raise UsageError(
            "a wheelhouse carries this project's own wheel: run the command from a checkout of the project"
        )
    with progress.step("find every file of the lock"):
        wheels = lock_artifacts(definition, lock, mirrors)
        tools = tool_artifacts(lock.python, definition)
    kept = [item for item in wheels if not _left_out(item, without)]
    left = [item for item in wheels if item not in kept]
    folder = out / ".wheels" if split else out
    check_room(out, folder, [*kept, *tools], twice=split is not None)
    (folder / "tools").mkdir(parents=True, exist_ok=True)
    wanted = [*((item, folder) for item in kept), *((item, folder / "tools") for item in tools)]
    # Before the fetching: beside it, each takes longer than the two in turn.
    with progress.step("build this project's own wheel"):
        build_project(folder / "tools")
    with progress.step("fetch the wheels") as detail:
        fetched = fetch_all(wanted, detail)
    with progress.step("write SHA256SUMS"):
        _write_papers(definition, lock, folder, left)
        known = {item.filename: item.sha256 for item in kept} | {
            f"tools/{item.filename}": item.sha256 for item in tools
        }
        write_sums(folder, known)
    parts = 0
    if split:
        with progress.step("split into parts") as detail:
            parts = write_parts(folder, out, split, detail)
            write_text(out / "INSTALL", _install_text(definition, lock, JOIN, bool(left)))
        shutil.rmtree(folder)
    return Made(len(left), fetched, parts)


def tool_artifacts(python: str, definition: StackDefinition) -> list[Artifact]:
    """The files of the lock of this project's own requirements, for the stack's platform and Python."""
    version = (int(python.partition(".")[0]), int(python.partition(".")[2]))
    locked = read_any_lock(TOOL_LOCK, version)
    text = "".join(
        " ".join([f"{item.name}=={item.version}", *(f"--hash=sha256:{value}" for value in sorted(item.hashes))]) + "\n"
        for item in locked
    )
    pylock = resolve_pylock(text, python, definition.platform)
    hashes = {item.name: item.hashes for item in locked}
    return index_artifacts(pylock, hashes, python, definition.glibc, definition.machine)


def check_room(out: Path, folder: Path, artifacts: Sequence[Artifact], *, twice: bool) -> None:
    """Refuse before anything is fetched what there is no room for; ``twice``: parts come beside the files.

    :raises UserError: naming the room that is needed and the room there is
    """
    sizes = [item.size or 0 for item in artifacts]
    missing = sum(item.size or 0 for item in artifacts if not (folder / item.filename).is_file())
    need = missing + (sum(sizes) if twice else 0)
    place = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < need:
        raise UserError(
            f"{out}: {free / 2**30:.1f} GiB are free and the wheelhouse needs {need / 2**30:.1f} GiB"
            + (", since wheels and parts lie side by side for a time" if twice else "")
            + ". Make room, or choose another place with --out"
        )


def build_project(folder: Path) -> None:
    """This project's wheel and source archive, made from the checkout.

    :raises SourceError: uv could not build them
    """
    for old in (*folder.glob("cu130_stack-*.whl"), *folder.glob("cu130_stack-*.tar.gz")):
        old.unlink()
    result = run_uv(
        ["build", "--no-create-gitignore", "--out-dir", str(folder.absolute()), str(CHECKOUT)],
        folder=folder,
        timeout=BUILD_SECONDS,
    )
    if result.returncode:
        raise SourceError(f"{CHECKOUT}: this project's wheel could not be built; uv says:\n{result.messages.rstrip()}")


def _left_out(item: Artifact, without: Mapping[str, str]) -> bool:
    """Whether the list names the file, with this hash where it has one: another content must be sent."""
    return item.filename in without and without[item.filename] in ("", item.sha256)


def _write_papers(definition: StackDefinition, lock: Lock, folder: Path, left: Sequence[Artifact]) -> None:
    shutil.copyfile(definition.path, folder / definition.path.name)
    lock_name = definition.lock_path(lock.python).name
    write_text(folder / lock_name, lock.text)
    shutil.copyfile(Path(transfer.__file__), folder / transfer.FILE_NAME)
    (folder / transfer.WITHOUT).unlink(missing_ok=True)
    if left:
        write_text(folder / transfer.WITHOUT, "".join(f"{item.sha256}  {item.filename}\n" for item in left))
    write_text(folder / "INSTALL", _install_text(definition, lock, VERIFY, bool(left)))


def _install_text(definition: StackDefinition, lock: Lock, first: str, left: bool) -> str:
    """The steps on the target; ``first`` are those that verify, and join where there are parts."""
    return INSTALL.format(
        stack=definition.name,
        python=lock.python,
        lock=definition.lock_path(lock.python).name,
        definition=definition.path.name,
        join=first.format(script=transfer.FILE_NAME),
        without=LEFT_OUT if left else "",
    )


def write_sums(folder: Path, known: Mapping[str, str]) -> None:
    """SHA256SUMS of a folder; ``known`` has the hashes that need not be computed again.

    :raises UserError: something lies in the folder that no wheelhouse has
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    names = [name for name in names if name != transfer.SUMS]
    foreign = [name for name in names if not transfer.safe_name(name) or (folder / name).is_symlink()]
    stale = [name for name in names if name.endswith(".whl") and name not in known and "cu130_stack" not in name]
    if foreign or stale:
        raise UserError(
            f"{folder}: holds what is not part of this wheelhouse: {', '.join((foreign + stale)[:10])}. "
            "Remove it, or choose an empty folder with --out"
        )
    sums = "".join(f"{known.get(name) or sha256_of(folder / name)}  {name}\n" for name in names)
    write_text(folder / transfer.SUMS, sums)

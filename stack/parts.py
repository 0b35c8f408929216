"""Writing a finished wheelhouse into numbered parts of one size, each with its hash; stack.transfer joins them."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from abi_checks.errors import UserError
from stack import transfer
from stack.files import write_text

CHUNK = 1 << 20


class _Parts(io.RawIOBase):
    """A stream that goes into numbered files of one size, each hashed on its way."""

    def __init__(self, folder: Path, size: int, detail: Callable[[str], None]) -> None:
        super().__init__()
        self._folder, self._size, self._detail = folder, size, detail
        self._stream: IO[bytes] | None = None
        self._left = 0
        self._digest = hashlib.sha256()
        self.rows: list[dict[str, str | int]] = []

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any, /) -> int:
        """Write all of ``data``, beginning new parts where one is full."""
        view = memoryview(data)
        count = len(view)
        while view:
            if self._stream is None:
                name = f"wheelhouse.part{len(self.rows) + 1:04d}"
                self._detail(name)
                self._stream, self._left, self._digest = (self._folder / name).open("wb"), self._size, hashlib.sha256()
                self.rows.append({"name": name})
            piece = view[: self._left]
            self._stream.write(piece)
            self._digest.update(piece)
            self._left -= len(piece)
            view = view[len(piece) :]
            if not self._left:
                self.finish()
        return count

    def finish(self) -> None:
        """Close the part at hand."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
            self.rows[-1] |= {"size": self._size - self._left, "sha256": self._digest.hexdigest()}


def write_parts(folder: Path, out: Path, size: int, detail: Callable[[str], None]) -> int:
    """Put a finished wheelhouse into parts of ``size`` bytes; returns how many.

    :raises UserError: the disk is full; then no part is left
    """
    for old in out.glob("wheelhouse.part*"):
        old.unlink()
    (out / transfer.PARTS).unlink(missing_ok=True)
    parts = _Parts(out, size, detail)
    try:
        with tarfile.open(fileobj=parts, mode="w|", bufsize=CHUNK, format=tarfile.PAX_FORMAT) as archive:
            for name in sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()):
                member = tarfile.TarInfo(name)
                member.size = (folder / name).stat().st_size
                with (folder / name).open("rb") as stream:
                    archive.addfile(member, stream)
        parts.finish()
        write_text(out / transfer.PARTS, json.dumps({"parts": parts.rows}, indent=1) + "\n")
        shutil.copyfile(folder / transfer.FILE_NAME, out / transfer.FILE_NAME)
    except OSError as error:
        for row in parts.rows:
            (out / str(row["name"])).unlink(missing_ok=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full; no part was left, and the wheels stay for another try" if full else str(error)
        raise UserError(f"{out}: the parts could not be written: {what}") from error
    return len(parts.rows)

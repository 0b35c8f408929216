"""Which state of this project is running."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
"""The checkout, or the folder of installed packages."""

GIT_SECONDS = 30.0


def revision() -> str:
    """The checkout's git revision, with ``+changes`` where tracked files differ from it; "" outside a checkout."""
    if not (CHECKOUT / ".git").exists() or not shutil.which("git"):
        return ""
    head, changed = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    return head + ("+changes" if head and changed else "")


def _git(*arguments: str) -> str:
    try:
        answer = subprocess.run(
            ["git", "-C", str(CHECKOUT), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()

"""The short form of the fuzz session, in processes of their own because they limit their memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("kind", "mutants"), [("elf", 4000), ("wheel", 600)])
def test_mutants_keep_the_rules(kind: str, mutants: int) -> None:
    command = [sys.executable, "-m", "tests.fuzz.mutants", "--kind", kind, "--mutants", str(mutants)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{mutants} of {mutants} {kind} mutants read or refused\n"

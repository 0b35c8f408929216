"""A fake environment whose Python starts the fake server, and small synthetic models."""

import json
import os
import sys
from pathlib import Path

import pytest

from stack.serve.boot import Boot
from stack.serve.launch import Launch
from stack.serve.plan import choose_models, make_launch
from stack.serve.ports import choose_port
from stack.synthetic.llama import Shape
from stack.synthetic.models import Draft, SyntheticModels, write_models
from stack.synthetic.orbit import DraftForm

ROOT = Path(__file__).parents[3]
CHAIN = (
    ("speculative-algorithm", "EAGLE3"),
    ("speculative-num-steps", "3"),
    ("speculative-eagle-topk", "1"),
    ("speculative-num-draft-tokens", "4"),
)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder of models with three drafts."""
    folder = tmp_path_factory.mktemp("models") / "small"
    drafts = (Draft(DraftForm.FULL, 0.8), Draft(DraftForm.FULL, 0.0), Draft(DraftForm.TWO_TOKEN))
    write_models(folder, SyntheticModels("llama", Shape(8, 320, 64, 320), 1, drafts))
    return folder


@pytest.fixture
def environment(tmp_path):
    """An environment whose bin/python runs the fake server where SGLang's is asked for."""
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    server = Path(__file__).with_name("fake_server.py")
    python.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={ROOT}\n"
        f'if [ "$1" = -m ]; then shift 2; exec {sys.executable} {server} "$@"; fi\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return tmp_path / "env"


@pytest.fixture
def make_boot(tmp_path, environment, models, monkeypatch):
    """Plan one boot of the fake server with a behaviour."""

    def make(behaviour=None, options=(), draft=None, timeout=30.0, name="test"):
        monkeypatch.setenv("FAKE_SERVER", json.dumps(behaviour or {}))
        chosen = choose_models(str(models), draft, "speculative-algorithm" in dict(options))
        launch: Launch = make_launch(environment / "bin" / "python", chosen, options, 1, choose_port(None))
        return Boot(
            name=name,
            launch=launch,
            questions=chosen.questions(launch.steps),
            log=tmp_path / "server.log",
            timeout=timeout,
            gpus=lambda: (),
            memory=lambda: (),
            versions=(),
        )

    return make


def processes_with(text):
    """Process ids of living processes whose command line holds a text, this one left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "cmdline").read_bytes().replace(b"\0", b" "):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found

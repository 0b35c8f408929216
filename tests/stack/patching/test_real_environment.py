"""The shipped patches on a real environment with SGLang 0.5.9, and what the patched code then does on a CPU."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from stack.cli import main
from stack.interpreters import find_interpreter
from stack.patching import applied_series, apply_default_series, patch_status
from stack.patching.environment import open_environment
from stack.patching.series import load_all
from stack.patching.status import State
from stack.uv import run_uv
from tests.stack.patching.conftest import sha256
from tests.stack.patching.test_engine import record_faults

pytestmark = [pytest.mark.environment, pytest.mark.timeout(1200)]

LOCK = Path(__file__).parents[3] / "lockfiles" / "cu128-py312.txt"
DEFAULT = ["sm120-symmetric-memory", "kimi-k25-eagle3", "eagle3-capture-layers"]


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A fresh environment of the cu128 lock, on the file system of uv's cache so that files are hard links into it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    prefix = Path(os.environ.get("CU130_STACK_TEST_PREFIX", cache / "cu130-stack" / "test-prefix"))
    root = prefix / "patching" / "env"
    shutil.rmtree(root, ignore_errors=True)
    interpreter = find_interpreter("3.12")
    if interpreter is None:
        pytest.skip("there is no Python 3.12 here")
    for arguments in (
        ["venv", "--python", str(interpreter.path), str(root)],
        ["pip", "sync", "--python", str(root / "bin" / "python"), "--require-hashes", str(LOCK)],
    ):
        done = run_uv(arguments, folder=LOCK.parent, timeout=1100)
        assert done.returncode == 0, done.messages
    yield root
    shutil.rmtree(root.parent)


@pytest.fixture(scope="module")
def driver_stub(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 that has the symbols sgl_kernel asks for; each says that there is no device."""
    folder = tmp_path_factory.mktemp("driver")
    names = set()
    for library in root.glob("lib/python3.12/site-packages/sgl_kernel/**/*.so"):
        with library.open("rb") as stream:
            symbols = ELFFile(stream).get_section_by_name(".dynsym").iter_symbols()
            names |= {s.name for s in symbols if s["st_shndx"] == "SHN_UNDEF" and re.match(r"cu[A-Z]", s.name)}
    source = folder / "libcuda.c"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in sorted(names)))
    command = ["gcc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1")]
    subprocess.run([*command, str(source)], check=True, timeout=60)
    return folder


def probe(root: Path, driver_stub: Path) -> dict[str, Any]:
    script = Path(__file__).with_name("probe_sglang.py")
    done = subprocess.run(
        [str(root / "bin" / "python"), "-B", str(script)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=driver_stub,
        env={**os.environ, "LD_LIBRARY_PATH": str(driver_stub)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def digests(root: Path) -> dict[str, str]:
    """Every file of the two patched distributions and their RECORDs."""
    packages = root / "lib/python3.12/site-packages"
    patterns = ("sglang/**/*", "flashinfer/**/*.py", "sglang-*/*", "flashinfer_python-*/*")
    files = (path for pattern in patterns for path in packages.glob(pattern) if path.is_file())
    return {str(path.relative_to(packages)): sha256(path.read_bytes()) for path in files}


NO_MULTICAST = {
    "disabled": True,
    "size": 128 * 1024 * 1024,
    "messages": ["TorchSymmMemCommunicator: torch symmetric memory multicast operations are not supported."],
}


def test_both_ways_on_the_real_files(root: Path, driver_stub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = digests(root)
    # Two wheels of this lock install a file of the same name, so one RECORD is wrong from the start.
    faults = record_faults(open_environment(root).site_packages)
    assert probe(root, driver_stub) == {
        "kimi": {"methods": []},
        "symmetric memory": {"10": NO_MULTICAST, "12": {"error": "KeyError: 12"}, "13": {"error": "KeyError: 13"}},
        "fusion": {
            "gate": False,
            "flags": "No supported CUDA architectures found for major versions [9, 10].",
        },
    }

    applied = apply_default_series(root)
    assert [(patch.distribution, patch.name) for patch in applied] == [("sglang", name) for name in DEFAULT]
    assert applied_series(root) == applied
    changed = digests(root)
    touched = {path for path in original if original[path] != changed[path]}
    assert touched == {file.path for patch in applied for file in patch.files} | {"sglang-0.5.9.dist-info/RECORD"}
    assert changed.keys() == original.keys()
    assert record_faults(open_environment(root).site_packages) == faults

    assert main(["patch", "apply", str(root), "sm120-allreduce-fusion"]) == 0
    assert {status.state for status in patch_status(root)} == {State.APPLIED}
    assert probe(root, driver_stub) == {
        "kimi": {
            "methods": ["get_embed_and_head", "set_embed_and_head", "set_eagle3_layers_to_capture"],
            "get": True,
            "set": True,
            "default layers": [2, 30, 58],
            "named layers": [2, 30, 58],
            "embeddings looked up inside": True,
            "captured": [2.0, 30.0, 58.0],
        },
        "symmetric memory": {
            "10": NO_MULTICAST,
            "12": NO_MULTICAST,
            "13": {
                "disabled": True,
                "size": None,
                "messages": [
                    "TorchSymmMemCommunicator: no buffer size is known for device capability 13, "
                    "communicator is not available."
                ],
            },
        },
        "fusion": {"gate": True, "flags": "-gencode=arch=compute_120a,code=sm_120a"},
    }
    capsys.readouterr()
    assert main(["patch", "diff", str(root)]) == 0
    assert capsys.readouterr().out == "".join(
        f"# applied: {part.name}, {part.distribution} {part.version}\n{part.diff}"
        for status in patch_status(root)
        for part in status.parts
    )

    assert main(["patch", "revert", str(root)]) == 0
    assert digests(root) == original


def _statement(source: Path, text: str) -> ast.stmt:
    """The outermost ``if`` of a method whose source begins with ``text``."""
    for method in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(method, ast.FunctionDef):
            for statement in method.body:
                if isinstance(statement, ast.If) and ast.unparse(statement).startswith(text):
                    return statement
    raise AssertionError(f"{source} has no statement that begins with {text!r}")


def _run(statement: ast.stmt, **names: object) -> None:
    module = ast.fix_missing_locations(ast.Module([statement], []))
    exec(compile(module, "<statement>", "exec"), dict(names))


@pytest.mark.parametrize(
    ("named", "unpatched", "patched"),
    [
        # The three drafts' layers are: none named; the default ones by output; the default ones by input; others.
        (None, ([2, 30, 58], [2, 30, 58]), ([2, 30, 58], [2, 30, 58])),
        ([1, 29, 57], ([2, 30, 58], [2, 30, 58]), ([2, 30, 58], [2, 30, 58])),
        ([2, 30, 58], ([2, 30, 58], [3, 31, 59]), ([2, 30, 58], [2, 30, 58])),
        ([1, 10, 50], ([2, 30, 58], [2, 11, 51]), ([2, 11, 51], [2, 11, 51])),
    ],
)
def test_graphs_and_prefill_capture_the_layers_the_draft_names(
    root: Path, named: list[int] | None, unpatched: tuple[list[int], ...], patched: tuple[list[int], ...]
) -> None:
    """SGLang's own statements, run with stand-ins; the pairs are (layers in the decode graphs, layers in prefill)."""

    class Model:
        def set_eagle3_layers_to_capture(self, ids: list[int] | None = None) -> None:
            self.layers = [2, 30, 58] if ids is None else [i + 1 for i in ids]

    def captured() -> tuple[list[int], list[int]]:
        source = root / "lib/python3.12/site-packages/sglang/srt/model_executor"
        config = SimpleNamespace(eagle_config=named and {"eagle_aux_hidden_state_layer_ids": named})
        spec = SimpleNamespace(is_eagle3=lambda: True)
        model = Model()
        runner = SimpleNamespace(spec_algorithm=spec, is_draft_worker=False, model=model)
        arguments = SimpleNamespace(speculative_draft_model_path="d", speculative_draft_model_revision=None)
        model_config = SimpleNamespace(from_server_args=lambda *_, **__: SimpleNamespace(hf_config=config))
        _run(
            _statement(source / "model_runner.py", "if self.spec_algorithm.is_eagle3() and (not self.is_draft_worker)"),
            self=runner,
            ModelConfig=model_config,
            server_args=arguments,
        )
        _run(
            _statement(source / "cuda_graph_runner.py", "if model_runner.spec_algorithm.is_eagle3()"),
            self=SimpleNamespace(model_runner=runner),
            model_runner=runner,
        )
        graphs = model.layers
        _run(
            _statement(source / "model_runner.py", "if self.eagle_use_aux_hidden_state"),
            self=runner,
        )
        return graphs, model.layers

    assert captured() == unpatched
    assert main(["patch", "apply", str(root), "eagle3-capture-layers"]) == 0
    assert captured() == patched
    assert main(["patch", "revert", str(root)]) == 0


def test_an_environment_of_another_version_is_left_alone(root: Path) -> None:
    shipped = {series.version for series in load_all() if series.distribution == "sglang"}
    assert shipped == {"0.5.9"}
    packages = open_environment(root).site_packages
    info = packages / "sglang-0.5.9.dist-info"
    info.rename(packages / "sglang-0.5.14.dist-info")
    try:
        assert apply_default_series(root) == ()
        assert main(["patch", "apply", str(root), "kimi-k25-eagle3"]) == 1
    finally:
        (packages / "sglang-0.5.14.dist-info").rename(info)

"""Bills of materials, comparisons and pylock.toml, of a stack of tiny wheels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from email.message import Message
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.pylock import Pylock
from uv import find_uv_bin

from stack.cli import main
from stack.files import write_text
from stack.lock import inputs_digest
from stack.lockfile import Lock, LockedDistribution
from stack.prefix import Build, StackFolder
from stack.sbom import license_name, sbom_text
from tests.stack.tiny import PYTHON, TinyStack, make_tiny_stack, make_wheel, sha256

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyStack:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return make_tiny_stack(tmp_path)


@pytest.fixture
def build(tiny: TinyStack, tmp_path: Path, capsys: Capture) -> Build:
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    capsys.readouterr()
    current = StackFolder(tmp_path / "prefix" / "tiny").current
    assert current is not None
    return current


# --- bills of materials ---


def test_a_bill_names_every_distribution_with_its_hash(build: Build, tiny: TinyStack, tmp_path: Path) -> None:
    output = tmp_path / "sbom.json"
    assert main(["sbom", "--prefix", str(tmp_path / "prefix"), "--output", str(output)]) == 0
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(output.read_text()) is None
    bill = json.loads(output.read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "tiny")
    components = {item["name"]: item for item in bill["components"]}
    wheels = {path.name.partition("-")[0]: sha256(path) for path in tiny.wheelhouse.glob("*.whl")}
    assert {name: item["hashes"] for name, item in components.items()} == {
        name: [{"alg": "SHA-256", "content": digest}] for name, digest in wheels.items()
    }
    assert components["helper"]["purl"] == "pkg:pypi/helper@1.0"
    assert components["torch"]["purl"].startswith("pkg:pypi/torch@2.9.1%2Bcu130?download_url=")
    (torch,) = (item for item in bill["dependencies"] if item["ref"] == "torch==2.9.1+cu130")
    assert torch["dependsOn"] == ["helper==1.0"]
    rebuild = {item["name"]: item["value"] for item in bill["metadata"]["component"]["properties"]}
    assert rebuild["cu130-stack:rebuild"] == f"cu130-stack build --stack {tiny.definition} --python {PYTHON}"


def test_the_same_build_gives_the_same_bill(build: Build) -> None:
    assert sbom_text(build, {}) == sbom_text(build, {})


def test_a_patch_is_in_the_pedigree(build: Build) -> None:
    manifest = json.loads(build.manifest.read_text())
    file = {"path": "sglang/a.py", "before": "0" * 64, "after": "1" * 64}
    manifest["patches"] = [
        {"name": "sm120-symmetric-memory", "distribution": "helper", "version": "1.0", "files": [file]},
    ]
    build.manifest.write_text(json.dumps(manifest))
    text = sbom_text(build, {})
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    (helper,) = (item for item in json.loads(text)["components"] if item["name"] == "helper")
    assert helper["pedigree"]["patches"] == [{"type": "unofficial"}]
    assert helper["pedigree"]["notes"] == f"sm120-symmetric-memory: sglang/a.py sha256 {'0' * 64} -> {'1' * 64}"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ([("License-Expression", "MIT OR Apache-2.0"), ("License", "other")], "MIT OR Apache-2.0"),
        ([("License", "BSD-3-Clause"), ("Classifier", "License :: OSI Approved :: BSD License")], "BSD-3-Clause"),
        ([("License", "A very\nlong text"), ("Classifier", "License :: OSI Approved :: MIT License")], "MIT License"),
        ([("License", "UNKNOWN"), ("Classifier", "License :: OSI Approved")], ""),
        ([], ""),
    ],
)
def test_the_licence_that_metadata_names(fields: list[tuple[str, str]], name: str) -> None:
    message = Message()
    for key, value in fields:
        message[key] = value
    assert license_name(message) == name


def test_no_bill_of_an_incomplete_build(build: Build, capsys: Capture) -> None:
    build.manifest.unlink()
    assert main(["sbom", str(build.folder)]) == 3
    assert "is not a complete build" in capsys.readouterr().err


@pytest.mark.environment
def test_the_bill_of_a_real_build_is_valid(built_stack) -> None:  # type: ignore[no-untyped-def]
    text = sbom_text(built_stack("cu128"), {})
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    components = {item["name"]: item for item in json.loads(text)["components"]}
    assert len(components["sglang"]["pedigree"]["patches"]) >= 1
    assert "diff --git" in components["sglang"]["pedigree"]["patches"][0]["diff"]["text"]["content"]
    assert components["torch"]["licenses"]


# --- comparisons ---


def needy(folder: Path) -> bytes:
    source = folder / "needy.c"
    source.write_text("void absent_function(void);\nvoid entry(void) { absent_function(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "x.so", source], check=True, timeout=60)
    return (folder / "x.so").read_bytes()


def whole(folder: Path) -> bytes:
    source = folder / "whole.c"
    source.write_text("void entry(void) {}\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "y.so", source], check=True, timeout=60)
    return (folder / "y.so").read_bytes()


def test_objects_whose_verdict_changes_are_named(tiny: TinyStack, tmp_path: Path, capsys: Capture) -> None:
    make_tiny_stack(tmp_path, helper_files={"helper/x.so": whole(tmp_path)})
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    build = StackFolder(tmp_path / "prefix" / "tiny").current
    assert build is not None
    other = tmp_path / "other"
    shutil.copytree(build.environment, other, symlinks=True)
    (library,) = other.glob("lib/python3.*/site-packages/helper/x.so")
    library.write_bytes(needy(tmp_path))
    capsys.readouterr()
    assert main(["diff", str(build.folder), str(other)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"- {build.folder}",
        f"+ {other}",
        "helper/x.so: loads → fails (absent_function)",
        "1 objects load before and fail after",
    ]
    assert main(["diff", str(other), str(build.folder)]) == 0
    assert "helper/x.so: fails → loads (absent_function)" in capsys.readouterr().out
    assert main(["diff", str(build.folder), str(other), "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema_version"], document["broken"]) == (1, 1)
    assert document["verdicts"][0] == {
        "path": "helper/x.so",
        "before": "loads",
        "after": "fails",
        "why": ["absent_function"],
    }


def test_versions_and_files_of_two_builds(build: Build, tiny: TinyStack, tmp_path: Path, capsys: Capture) -> None:
    make_tiny_stack(tmp_path, helper_files={"helper/__init__.py": "answer = 43\n"})
    assert main(tiny.arguments(tmp_path / "prefix")) == 0
    current = StackFolder(tmp_path / "prefix" / "tiny").current
    assert current is not None
    capsys.readouterr()
    assert main(["diff", str(build.folder), str(current.folder)]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["helper: same version, other files"]
    assert main(["diff", str(build.folder), str(build.folder)]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["no difference"]


def test_two_locks(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.txt").write_text(f"x==1 --hash=sha256:{'a' * 64}\ny==1 --hash=sha256:{'b' * 64}\n")
    (tmp_path / "b.txt").write_text(f"x==2 --hash=sha256:{'a' * 64}\ny==1 --hash=sha256:{'c' * 64}\nz==1\n")
    assert main(["diff", str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "x: 1 → 2",
        "z: added 1",
        "y: same version, other files",
        "(verdicts were not compared: nothing is installed on the side of the lock)",
    ]


def test_a_lock_and_an_environment(build: Build, capsys: Capture) -> None:
    assert main(["diff", str(build.lock), str(build.environment)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "(files were not compared: a lock has hashes of wheels, an environment of installed files)" in lines
    assert not [line for line in lines[2:] if "→" in line and "torch" not in line]


def test_what_cannot_be_compared(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.txt").write_text("x==1\n")
    assert main(["diff", str(tmp_path / "a.txt"), str(tmp_path / "none")]) == 3
    assert "none: there is no such lock file, build or environment" in capsys.readouterr().err
    (tmp_path / "folder").mkdir()
    assert main(["diff", str(tmp_path / "a.txt"), str(tmp_path / "folder")]) == 3
    assert "is not a virtual environment" in capsys.readouterr().err


# --- pylock.toml ---


def public(tiny: TinyStack) -> None:
    """Make the tiny stack one whose every wheel an index has; the lock of helper allows a second file."""
    head, _, _ = tiny.definition.read_text().partition("[[wheels]]")
    tiny.definition.write_text(f'{head}[[requirements]]\npin = "torch==2.9.1"\nreason = "none"\n')
    definition = tiny.load()
    next(tiny.wheelhouse.glob("torch-*.whl")).unlink()
    helper = sha256(next(tiny.wheelhouse.glob("helper-*.whl")))
    torch = sha256(make_wheel(tiny.wheelhouse, "torch", "2.9.1", {"torch/version.py": "__version__ = '2.9.1+cu130'\n"}))
    locked = (
        LockedDistribution("helper", "1.0", "", tuple(sorted((helper, "0" * 64)))),
        LockedDistribution("torch", "2.9.1", "", (torch,)),
    )
    lock = Lock("tiny", PYTHON, inputs_digest(definition, PYTHON), locked)
    write_text(definition.lock_path(PYTHON), lock.text)


def test_a_pylock_installs_the_same_wheels(tiny: TinyStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public(tiny)
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tiny.wheelhouse))
    output = tmp_path / "pylock.toml"
    assert main(["pylock", "--stack", str(tiny.definition), "--python", PYTHON, "--output", str(output)]) == 0
    document = tomllib.loads(output.read_text())
    pylock = Pylock.from_dict(document)
    assert [str(package.name) for package in pylock.packages] == ["helper", "torch"]
    assert document["requires-python"] == f"=={PYTHON}.*"
    (wheel,) = document["packages"][0]["wheels"]
    assert wheel["name"] == "helper-1.0-py3-none-any.whl"
    assert wheel["hashes"] == {"sha256": sha256(next(tiny.wheelhouse.glob("helper-*.whl")))}
    environment = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cold")}
    uv = find_uv_bin()
    subprocess.run(
        [uv, "venv", "--python", sys.executable, "env"], cwd=tmp_path, env=environment, check=True, timeout=60
    )
    command = [uv, "pip", "sync", "--python", "env/bin/python", "pylock.toml"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60)
    assert list((tmp_path / "env").glob("lib/python3.*/site-packages/helper/__init__.py"))


def test_a_wheel_without_an_address_has_no_place_in_a_pylock(tiny: TinyStack, capsys: Capture) -> None:
    assert main(["pylock", "--stack", str(tiny.definition), "--python", PYTHON]) == 1
    assert "torch 2.9.1+cu130: only a wheelhouse has it" in capsys.readouterr().err


def test_an_index_that_does_not_have_it(tiny: TinyStack, tmp_path: Path, capsys: Capture) -> None:
    public(tiny)
    (tmp_path / "index" / "helper").mkdir(parents=True)
    (tmp_path / "index" / "helper" / "index.html").write_text("<html></html>")
    index = (tmp_path / "index").as_uri()
    assert main(["pylock", "--stack", str(tiny.definition), "--python", PYTHON, "--index", index]) == 3
    assert "the package index does not give every file of the lock" in capsys.readouterr().err

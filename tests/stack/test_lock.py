"""Lock files: their text, the committed ones, and the locks that are refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from abi_checks.errors import UsageError, UserError
from stack.cli import main
from stack.definition import LOCKFILES, load_definition, stack_names
from stack.lock import current_lock, differences, inputs_digest, make_lock, refuse
from stack.lockfile import Lock, LockedDistribution, parse_distributions, read_lock
from stack.lockrules import refusals, toolkit_parts
from tests.stack.tiny import PYTHON, make_tiny_stack

STACKS = [(name, python) for name in stack_names() for python in load_definition(name).pythons]
A, B = "a" * 64, "b" * 64


def with_versions(lock: Lock, **versions: str) -> Lock:
    """The lock with other versions (underscores for hyphens), added where they are not there."""
    wanted = {name.replace("_", "-"): version for name, version in versions.items()}
    kept = tuple(item for item in lock.distributions if item.name not in wanted)
    added = tuple(LockedDistribution(name, version, "", (A,)) for name, version in wanted.items())
    return replace(lock, distributions=kept + added)


@pytest.mark.parametrize(("name", "python"), STACKS)
def test_the_committed_locks_are_of_their_definitions_and_name_no_index(name: str, python: str) -> None:
    definition = load_definition(name)
    lock = current_lock(definition, python)
    text = definition.lock_path(python).read_text()
    assert lock.text == text
    assert all(item.hashes for item in lock.distributions)
    hosts = set(re.findall(r"https?://([^/\s]+)", text))
    assert hosts == ({"download.pytorch.org", "github.com"} if name == "cu130" else set())
    assert [item.name for item in lock.direct] == sorted(wheel.name for wheel in definition.wheels)


def test_there_is_no_lock_of_anything_else() -> None:
    expected = {load_definition(name).lock_path(python) for name, python in STACKS}
    assert set(LOCKFILES.glob("*-py*.txt")) == expected


@pytest.mark.parametrize(("name", "toolkit"), [("cu128", "12.8"), ("cu130", "13.0"), ("cu130-pypi", "13.0")])
def test_every_toolkit_part_of_the_committed_locks_is_of_one_toolkit(name: str, toolkit: str) -> None:
    parts = toolkit_parts(current_lock(load_definition(name), "3.12").versions)
    assert len(parts) >= 5 and set(parts.values()) == {toolkit}


def test_a_mix_of_toolkits_is_refused_with_the_parts_named() -> None:
    definition = load_definition("cu130-pypi")
    # What a resolution without the definition's override gives.
    lock = with_versions(
        current_lock(definition, "3.12"),
        nvidia_cuda_crt="13.3.33",
        nvidia_cuda_nvcc="13.2.78",
        nvidia_cuda_tileiras="13.2.78",
        nvidia_nvvm="13.2.78",
    )
    with pytest.raises(UserError) as caught:
        refuse(definition, lock)
    message = str(caught.value)
    assert "CUDA 13.2: nvidia-cuda-nvcc 13.2.78, nvidia-cuda-tileiras 13.2.78, nvidia-nvvm 13.2.78;" in message
    assert "CUDA 13.3: nvidia-cuda-crt 13.3.33." in message
    assert "nvidia-cuda-runtime 13.0.96" in message and "nvidia-cublas" not in message
    with pytest.raises(UserError) as caught:
        refuse(definition, lock, {"nvidia-nvvm": ("nvidia-cuda-nvcc",), "nvidia-cuda-runtime": ("torch",)})
    message = str(caught.value)
    assert "nvidia-nvvm 13.2.78 (required by nvidia-cuda-nvcc);" in message
    assert "nvidia-cuda-runtime 13.0.96," in message  # of the right toolkit


def test_toolkit_parts_of_cuda_12_are_known_by_their_suffix() -> None:
    versions = {"nvidia-cuda-nvrtc-cu12": "12.8.93", "nvidia-nvtx-cu12": "12.8.90", "nvidia-cublas-cu12": "12.8.4.1"}
    assert toolkit_parts(versions) == {"nvidia-cuda-nvrtc-cu12": "12.8", "nvidia-nvtx-cu12": "12.8"}


@pytest.mark.parametrize(
    ("name", "torch", "defined"),
    [
        ("cu130", "2.10.0", "2.9.1+cu130"),
        # The release is right, and it is the index's build for CUDA 12.8.
        ("cu130", "2.9.1", "2.9.1+cu130"),
        ("cu128", "2.10.0", "2.9.1+cu128"),
        ("cu130-pypi", "2.9.1", "2.11.0+cu130"),
    ],
)
def test_another_torch_is_refused(name: str, torch: str, defined: str) -> None:
    definition = load_definition(name)
    lock = with_versions(current_lock(definition, "3.12"), torch=torch)
    assert refusals(definition, lock, {}) == [f"its torch is {torch}, and the definition says {defined}"]


def test_no_torch_at_all_is_refused() -> None:
    definition = load_definition("cu128")
    lock = current_lock(definition, "3.12")
    without = replace(lock, distributions=tuple(item for item in lock.distributions if item.name != "torch"))
    assert refusals(definition, without, {}) == ["its torch is absent, and the definition says 2.9.1+cu128"]


def test_the_right_release_by_url_from_another_build_is_refused() -> None:
    definition = load_definition("cu130")
    lock = current_lock(definition, "3.12")
    url = "https://download.pytorch.org/whl/cu129/torch-2.9.1%2Bcu129-cp312-cp312-manylinux_2_28_x86_64.whl"
    other = tuple(
        i if i.name != "torch" else LockedDistribution("torch", "2.9.1+cu129", url, (A,)) for i in lock.distributions
    )
    assert refusals(definition, replace(lock, distributions=other), {}) == [
        "its torch is 2.9.1+cu129, and the definition says 2.9.1+cu130"
    ]


def test_an_override_without_effect_is_refused() -> None:
    definition = load_definition("cu130-pypi")
    lock = current_lock(definition, "3.12")
    without = replace(lock, distributions=tuple(item for item in lock.distributions if item.name != "cuda-tile"))
    assert refusals(definition, without, {}) == [
        "the override cuda-tile==1.3.0 has no effect: nothing requires cuda-tile; remove it"
    ]


def test_entries_are_put_in_normal_form() -> None:
    url = "https://h.example/T_x-1.0%2Bcu130-py3-none-any.whl"
    text = f"Zoo_b==1.0 \\\n    --hash=sha256:{B} \\\n    --hash=sha256:{A}\n# note\n\n"
    text += f"t-x @ {url}#sha256={A} --hash=sha256:{A}\n"
    items = parse_distributions(text, "text")
    assert items == (LockedDistribution("t-x", "1.0+cu130", url, (A,)), LockedDistribution("zoo-b", "1.0", "", (A, B)))
    lock = Lock("s", "3.12", A, items)
    assert lock.text.splitlines()[2:] == [
        f"t-x @ {url} \\",
        f"    --hash=sha256:{A}",
        "zoo-b==1.0 \\",
        f"    --hash=sha256:{A} \\",
        f"    --hash=sha256:{B}",
    ]
    assert parse_distributions(lock.text, "text") == items


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a==1\n", "'a==1' must have sha256 hashes"),
        (f"a==1 --hash=md5:{A}\n", "must have sha256 hashes"),
        (f"a==1 --pre --hash=sha256:{A}\n", "no other option"),
        (f"a>=1 --hash=sha256:{A}\n", "is neither 'name==version' nor"),
        (f"a @ file:///a-1-py3-none-any.whl --hash=sha256:{A}\n", "is neither 'name==version' nor"),
        (f"a @ https://h.example/a.zip --hash=sha256:{A}\n", "Invalid wheel filename"),
        (f"a==1 --hash=sha256:{A}\nA==2 --hash=sha256:{A}\n", "a appears twice"),
    ],
)
def test_entries_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_distributions(text, "some.txt")


def test_a_lock_that_was_edited_is_refused(tmp_path: Path) -> None:
    tiny = make_tiny_stack(tmp_path)
    path = tiny.load().lock_path(PYTHON)
    path.write_text(path.read_text() + f"extra==1 --hash=sha256:{A}\n")
    with pytest.raises(UsageError, match="was edited by hand"):
        read_lock(path)
    path.write_text("helper==1.0\n")
    with pytest.raises(UsageError, match="not a lock of this project"):
        read_lock(path)
    path.unlink()
    with pytest.raises(UsageError, match="there is no such lock"):
        read_lock(path)


def test_a_lock_of_another_state_of_the_definition_is_refused(tmp_path: Path) -> None:
    tiny = make_tiny_stack(tmp_path)
    assert current_lock(tiny.load(), PYTHON).versions == {"helper": "1.0", "torch": "2.9.1+cu130"}
    tiny.definition.write_text(tiny.definition.read_text().replace("as_of = 2026-01-01", "as_of = 2026-01-02"))
    with pytest.raises(UserError, match="was made from another state of"):
        current_lock(tiny.load(), PYTHON)


def test_differences_name_what_changed() -> None:
    def lock(**items: tuple[str, str]) -> Lock:
        found = (LockedDistribution(name, version, "", (digest,)) for name, (version, digest) in items.items())
        return Lock("s", "3.12", A, tuple(found))

    old = lock(one=("1", A), two=("1", A), three=("1", A))
    new = lock(one=("1", B), two=("2", A), x=("1", A))
    assert differences(old, new) == ["one 1: other files", "three: removed", "two: 1 → 2", "x: added"]
    assert differences(old, old) == []
    same = ["made from another state of the definition, with the same result"]
    assert differences(old, replace(old, inputs=B)) == same


@pytest.mark.environment
@pytest.mark.parametrize("name", stack_names())
def test_locks_made_again_are_the_same_bytes(name: str) -> None:
    definition = load_definition(name)
    for python in definition.pythons:
        assert make_lock(definition, python).text == definition.lock_path(python).read_text()


@pytest.mark.environment
def test_who_brings_a_part_of_another_toolkit_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """nvidia-cuda-nvcc requires crt and nvvm without a version."""
    path = tmp_path / "mixed.toml"
    path.write_text(
        """
name = "mixed"
summary = "a compiler without the parts that fit it"
as_of = 2026-06-27
cuda = "13.0"
torch = "2.11.0"
machine = "x86_64"
glibc = "2.34"
disk_gib = 1
pythons = ["3.12"]
target_sm = ["90"]
[[requirements]]
pin = "nvidia-cuda-nvcc==13.0.88"
reason = "it is small"
"""
    )
    assert main(["lock", "--stack", str(path)]) != 0
    said = capsys.readouterr().err
    assert "CUDA 13.0: nvidia-cuda-nvcc 13.0.88;" in said
    assert "nvidia-nvvm 13.3.33 (required by nvidia-cuda-nvcc)" in said
    assert not (tmp_path / "mixed-py312.txt").exists()


@pytest.mark.environment
def test_check_fails_on_drift_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "drift.toml"
    path.write_text(
        f"""
name = "drift"
summary = "one small wheel called torch by its definition"
as_of = 2026-01-01
cuda = "13.0"
torch = "2.9.1"
machine = "x86_64"
glibc = "2.28"
disk_gib = 1
pythons = ["3.12"]
target_sm = ["90"]
[[requirements]]
pin = "idna==3.10"
reason = "small"
[[wheels]]
name = "torch"
version = "2.9.1"
reason = "never fetched: stated"
requires_dist = []
[[wheels.files]]
pythons = ["3.12"]
file = "torch-2.9.1-py3-none-any.whl"
sha256 = "{A}"
"""
    )
    lock = load_definition(str(path)).lock_path("3.12")
    assert main(["lock", "--stack", str(path), "--check"]) == 1 and not lock.exists()
    assert main(["lock", "--stack", str(path)]) == 0
    assert main(["lock", "--stack", str(path), "--check"]) == 0
    good = lock.read_text()
    lock.write_text(good.replace("idna==3.10", "idna==3.9"))
    capsys.readouterr()
    assert main(["lock", "--stack", str(path), "--check"]) == 1
    assert "idna: 3.9 → 3.10" in capsys.readouterr().out
    assert lock.read_text() == good.replace("idna==3.10", "idna==3.9")


def test_the_inputs_digest_depends_on_the_platform_but_not_on_reasons(tmp_path: Path) -> None:
    definition = make_tiny_stack(tmp_path).load()
    digest = inputs_digest(definition, PYTHON)
    assert inputs_digest(replace(definition, summary="other"), PYTHON) == digest
    assert inputs_digest(replace(definition, glibc="2.34"), PYTHON) != digest

"""Definitions: the packaged ones, and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from abi_checks.errors import SourceError, UsageError
from stack.definition import load_definition, stack_names
from tests.stack.tiny import make_tiny_stack


def test_the_packaged_definitions() -> None:
    assert stack_names() == ("cu128", "cu130", "cu130-pypi")
    for name in stack_names():
        definition = load_definition(name)
        assert definition.pythons == ("3.11", "3.12")
        assert dict(definition.python_unavailable).keys() == {"3.13"}
        assert all(pin.reason for pin in (*definition.requirements, *definition.overrides))
        assert definition.waivers


def test_cu130_has_four_wheels_by_url_and_sgl_kernels_uploads() -> None:
    wheels = {wheel.name: wheel for wheel in load_definition("cu130").wheels}
    assert {name: wheel.version for name, wheel in wheels.items()} == {
        "torch": "2.9.1+cu130",
        "torchvision": "0.24.1+cu130",
        "torchaudio": "2.9.1+cu130",
        "sgl-kernel": "0.3.21+cu130",
    }
    kernel = wheels["sgl-kernel"]
    assert len(kernel.uploads) == 8
    pinned = kernel.file_for("3.12").sha256
    # The last upload under the name that the URL has.
    assert pinned == max((u for u in kernel.uploads if u.tag == "cp310"), key=lambda upload: upload.date).sha256
    assert wheels["torch"].file_for("3.11").filename == "torch-2.9.1+cu130-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('summary = "two tiny wheels"', "", "tiny.toml: 'summary' is missing"),
        ('summary = "two tiny wheels"', "summary = 3", "'summary' must be a text that is not empty, not a number (3)"),
        ("as_of = 2026-01-01", 'as_of = "2026-01-01"', "'as_of' must be a date such as 2026-02-25, without quotes"),
        ("as_of = 2026-01-01", "as_of = 2026-01-01T00:00:00Z", "'as_of' must be a date"),
        ("disk_gib = 1", "disk_gib = 0", "'disk_gib' must be a whole number above 0, not 0"),
        ("disk_gib = 1", "disk_gib = 1\ncolour = 1", "unknown key 'colour'; known: "),
        ('glibc = "2.17"', 'glibc = "3"', "'glibc' is '3', which is not of the form"),
        ('pin = "helper==1.0"', 'pin = "helper>=1.0"', "requirements[1]: a pin must be exact"),
        ('pin = "helper==1.0"', 'pin = "helper=="', "requirements[1]: 'helper==' is not a requirement"),
        ('reason = "to have one that an index carries"', "", "requirements[1]: 'reason' is missing"),
        ('name = "tiny"', 'name = "other"', "the file must be named other.toml"),
        ('file = "torch-', 'file = "tarch-', "tarch-2.9.1+cu130-py3-none-any.whl is not a wheel of torch 2.9.1+cu130"),
        ('file = "torch-', 'url = "http://h/torch-', "'url' must be the https address of a .whl file"),
        ('commit = "1111111"', "commit = 1", "wheels[1]: uploads[1]: 'commit' must be a text"),
    ],
)
def test_a_wrong_definition_is_refused_by_table_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = make_tiny_stack(tmp_path).definition
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        load_definition(str(path))
    assert message in str(caught.value) and "tiny.toml" in str(caught.value)


def test_files_that_are_no_definitions(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot read the stack definition: No such file"):
        load_definition(str(tmp_path / "absent.toml"))
    (tmp_path / "broken.toml").write_text("name = ")
    with pytest.raises(UsageError, match="not a valid TOML file"):
        load_definition(str(tmp_path / "broken.toml"))
    with pytest.raises(UsageError, match="no stack named 'cu140'; there are cu128, cu130, cu130-pypi"):
        load_definition("cu140")


def test_a_python_without_wheels_is_refused_with_the_reason() -> None:
    with pytest.raises(
        UsageError, match=r"outlines-core 0\.1\.26, which has no wheel for Python 3\.13\. Choose .* 3\.11, 3\.12"
    ):
        load_definition("cu130").check_python("3.13")


def test_launch_profiles(tmp_path: Path) -> None:
    extra = '[profiles.fast]\ntp = 8\n"trust-remote-code" = true\n"attention-backend" = "flashinfer"\n'
    profile = make_tiny_stack(tmp_path, extra=extra).load().profiles[0]
    assert (profile.name, profile.options) == (
        "fast",
        (("--tp", "8"), ("--trust-remote-code", ""), ("--attention-backend", "flashinfer")),
    )

"""Verification of an environment against a lock and against RECORD."""

from __future__ import annotations

from pathlib import Path

import pytest

from abi_checks.errors import SourceError
from stack.installed import compare, installed_distributions, site_packages, torch_build


def install(packages: Path, name: str, version: str, files: dict[str, str], record: str) -> None:
    """Lay down files and a dist-info folder whose RECORD is given as text."""
    info = packages / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    for path, text in files.items():
        (packages / path).parent.mkdir(parents=True, exist_ok=True)
        (packages / path).write_text(text)
    (info / "RECORD").write_text(record + f"{info.name}/RECORD,,\n")


# sha256 of "x = 1\n" as RECORD has it.
X1 = "sha256=nia_NpkRxFwkPGhBR7I_yeHc_PJX0pmhxjIBam_NM_Q"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    packages = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    install(packages, "Some_Name", "1.0", {"one.py": "x = 1\n"}, f"one.py,{X1},6\n")
    (packages / "_virtualenv.py").write_text("")
    (packages / "__pycache__").mkdir()
    (packages / "__pycache__" / "one.cpython-312.pyc").write_text("")
    return tmp_path / "env"


VERSIONS = {"some-name": "1.0"}


def test_what_is_as_locked_has_no_problems(environment: Path) -> None:
    found = compare(environment, VERSIONS, (), deep=True)
    assert (found.problems, found.distributions, found.files, found.hashed) == ((), 1, 2, 6)


def test_versions_are_compared_as_versions(environment: Path) -> None:
    assert compare(environment, {"some-name": "1.0.0"}, ()).problems == ()
    assert compare(environment, {"some-name": "1.1", "other": "2"}, ()).problems == (
        "some-name: 1.0 is installed, and the lock has 1.1",
        "other 2: is in the lock and not installed",
    )
    assert compare(environment, {}, ()).problems == ("some-name 1.0: is installed and not in the lock",)


def test_installed_twice(environment: Path) -> None:
    install(site_packages(environment), "some_name", "0.9", {}, "")
    assert "some-name: is installed twice" in compare(environment, VERSIONS, ()).problems


def test_a_file_of_another_size_or_absent(environment: Path) -> None:
    target = site_packages(environment) / "one.py"
    target.write_text("x = 12\n")
    assert compare(environment, VERSIONS, ()).problems == ("some-name: one.py has 7 bytes instead of 6",)
    target.unlink()
    assert compare(environment, VERSIONS, ()).problems == (
        "some-name: one.py cannot be looked at: No such file or directory",
    )


def test_only_deep_sees_another_content_of_the_same_size(environment: Path) -> None:
    (site_packages(environment) / "one.py").write_text("x = 2\n")
    assert compare(environment, VERSIONS, ()).problems == ()
    problems = compare(environment, VERSIONS, (), deep=True).problems
    assert (
        len(problems) == 1 and problems[0].startswith("some-name: one.py has sha256 ") and problems[0].endswith(X1[7:])
    )


def test_a_file_that_nobody_owns(environment: Path) -> None:
    (site_packages(environment) / "stray.so").write_text("")
    assert compare(environment, VERSIONS, ()).problems == ("stray.so: no distribution owns this file",)


def test_two_claims_to_one_path(environment: Path) -> None:
    install(site_packages(environment), "second", "1.0", {}, "one.py,sha256=other,9\n")
    versions = VERSIONS | {"second": "1.0"}
    assert compare(environment, versions, ()).problems == (
        f"second and some-name both install {site_packages(environment) / 'one.py'} with different content, "
        "and chance decides which one lies there: name the winner in [[overlaps]]",
    )
    assert compare(environment, versions, [("some-name", "second")], deep=True).problems == ()
    assert compare(environment, versions, [("second", "some-name")]).problems == (
        "second: one.py has 6 bytes instead of 9",
    )


def test_an_unreadable_record(environment: Path) -> None:
    (site_packages(environment) / "Some_Name-1.0.dist-info" / "RECORD").unlink()
    problems = compare(environment, VERSIONS, ()).problems
    assert problems[0].startswith("some-name 1.0: its RECORD cannot be read: ")


def test_not_an_environment(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not a virtual environment"):
        compare(tmp_path, {}, ())


def test_torch_names_its_build(environment: Path) -> None:
    packages = site_packages(environment)
    assert torch_build(packages) == ""
    (packages / "torch").mkdir()
    (packages / "torch" / "version.py").write_text("__all__ = ['__version__']\n__version__ = '2.11.0+cu130'\n")
    assert torch_build(packages) == "2.11.0+cu130"
    assert [item.name for item in installed_distributions(packages)] == ["some-name"]

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from abi_checks.errors import UsageError, UserError
from stack.patching import engine
from stack.patching.environment import Environment
from stack.patching.record import record_hash
from stack.patching.series import Series, load_all
from stack.patching.status import State
from tests.stack.patching.conftest import install, tree

AllSeries = tuple[Series, ...]


def states(environment: Environment, all_series: AllSeries) -> dict[str, State]:
    return {status.name: status.state for status in engine.status(environment, all_series)}


def record_faults(site_packages: Path) -> list[str]:
    """Paths whose RECORD line does not fit the file: what any check of RECORD would find."""
    faults = []
    for record in site_packages.glob("*.dist-info/RECORD"):
        for path, digest, size in csv.reader(record.open(newline="")):
            file = site_packages / path
            if not file.is_file() or (
                digest and (digest, size) != (record_hash(file.read_bytes()), str(file.stat().st_size))
            ):
                faults.append(path)
    return faults


def test_defaults_are_applied_in_order_and_record_and_manifest_follow(
    environment: Environment, all_series: AllSeries
) -> None:
    outcome = engine.apply(environment, all_series, ())
    assert outcome.changed == ("base", "over")
    packages = environment.site_packages
    assert (packages / "alpha/one.py").read_bytes() == b"first = 1\nsecond = 22\nextra = 1\nthird = 3\nfourth = 4\n"
    assert (packages / "alpha/two.py").read_bytes() == b"text = 'a'\r\n\nkey = {9: 1, 12: 1}\nlast = None"
    assert states(environment, all_series) == {
        "base": State.APPLIED,
        "over": State.APPLIED,
        "both": State.NOT_APPLIED,
    }
    assert record_faults(packages) == []
    assert environment.manifest is not None
    manifest = json.loads(environment.manifest.read_text())
    assert manifest["stack"] == "x"
    assert [(row["distribution"], row["name"]) for row in manifest["patches"]] == [("alpha", "base"), ("alpha", "over")]
    assert [file["path"] for file in manifest["patches"][0]["files"]] == ["alpha/one.py", "alpha/two.py"]


def test_applying_twice_changes_nothing(environment: Environment, all_series: AllSeries) -> None:
    engine.apply(environment, all_series, ())
    files = {path: path.stat().st_ino for path in environment.site_packages.rglob("*")}
    assert engine.apply(environment, all_series, ()).changed == ()
    assert {path: path.stat().st_ino for path in environment.site_packages.rglob("*")} == files


def test_revert_restores_every_byte(environment: Environment, all_series: AllSeries) -> None:
    build = environment.site_packages.parents[3]
    before = tree(build)
    engine.apply(environment, all_series, ())
    engine.apply(environment, all_series, ["both"])
    assert tree(build) != before
    assert engine.revert(environment, all_series, ()).changed == ("base", "over", "both")
    assert tree(build) == before
    assert engine.revert(environment, all_series, ()).changed == ()


def test_the_upper_patch_can_go_alone_and_the_lower_one_cannot(environment: Environment, all_series: AllSeries) -> None:
    engine.apply(environment, all_series, ())
    before = tree(environment.site_packages)
    with pytest.raises(UsageError, match="patch over lies over patch base"):
        engine.revert(environment, all_series, ["base"])
    assert tree(environment.site_packages) == before
    assert engine.revert(environment, all_series, ["over"]).changed == ("over",)
    assert states(environment, all_series)["base"] is State.APPLIED
    assert engine.revert(environment, all_series, ["base"]).changed == ("base",)
    with pytest.raises(UsageError, match="patch over lies over patch base"):
        engine.apply(environment, all_series, ["over"])


def test_a_patch_that_spans_distributions_is_one(environment: Environment, all_series: AllSeries) -> None:
    assert engine.apply(environment, all_series, ["both"]).changed == ("both",)
    assert (environment.site_packages / "beta/core.py").read_bytes() == b"majors = [9, 10, 12]\n"
    assert (environment.site_packages / "alpha/__init__.py").read_bytes() == b"fused = True\n"
    assert record_faults(environment.site_packages) == []


@pytest.mark.parametrize("action", [engine.apply, engine.revert])
def test_one_changed_byte_is_refused_and_nothing_touched(
    environment: Environment, all_series: AllSeries, action
) -> None:  # type: ignore[no-untyped-def]
    if action is engine.revert:
        engine.apply(environment, all_series, ())
    file = environment.site_packages / "alpha/two.py"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    before = tree(environment.site_packages)
    with pytest.raises(UserError, match=r"patch base: edited by hand: alpha/two\.py is neither"):
        action(environment, all_series, ())
    assert tree(environment.site_packages) == before


def test_half_applied_is_named(environment: Environment, all_series: AllSeries) -> None:
    original = (environment.site_packages / "alpha/two.py").read_bytes()
    engine.apply(environment, all_series, ["base"])
    (environment.site_packages / "alpha/two.py").write_bytes(original)
    with pytest.raises(UserError, match=r"patch base: half applied: alpha/one\.py carries it, alpha/two\.py does not"):
        engine.apply(environment, all_series, ())


def test_a_missing_file_is_named(environment: Environment, all_series: AllSeries) -> None:
    (environment.site_packages / "alpha/two.py").unlink()
    with pytest.raises(UserError, match=r"patch base: file missing: alpha/two\.py is not in"):
        engine.apply(environment, all_series, ())


def test_another_build_of_the_same_version_is_told_from_an_edit(tmp_path: Path, all_series: AllSeries) -> None:
    packages = tmp_path / "target"
    install(
        packages.resolve(),
        "alpha",
        "1.0",
        {"alpha/one.py": b"first = 0\n", "alpha/two.py": b"", "alpha/__init__.py": b""},
    )
    environment = Environment(packages, None)
    with pytest.raises(UserError, match=r"patch base: another build: alpha/one\.py is as its wheel installed it"):
        engine.apply(environment, all_series, ())


def test_another_version_is_left_alone_and_refused_by_name(tmp_path: Path, all_series: AllSeries) -> None:
    packages = tmp_path / "target"
    install(packages, "alpha", "1.1", {"alpha/one.py": b"first = 1\n"})
    environment = Environment(packages, None)
    assert set(states(environment, all_series).values()) == {State.OTHER_VERSION}
    assert engine.apply(environment, all_series, ()).changed == ()
    with pytest.raises(UserError, match=r"patch base: another version: made for alpha 1\.0, and 1\.1 is installed"):
        engine.apply(environment, all_series, ["base"])


def test_a_partner_of_another_version_is_refused(environment: Environment, all_series: AllSeries) -> None:
    info = environment.site_packages / "beta_core-2.0.dist-info"
    info.rename(info.with_name("beta_core-2.1.dist-info"))
    with pytest.raises(UserError, match=r"together with its part for beta-core-2\.0, which is not what is installed"):
        engine.apply(environment, all_series, ["both"])
    assert engine.apply(environment, all_series, ()).changed == ("base", "over")


def test_an_unknown_name_is_a_usage_error(environment: Environment, all_series: AllSeries) -> None:
    with pytest.raises(UsageError, match="no patch is named 'nope'; there are base, both, over"):
        engine.apply(environment, all_series, ["nope"])


def test_a_file_that_record_does_not_list_is_refused(environment: Environment, all_series: AllSeries) -> None:
    record = environment.site_packages / "alpha-1.0.dist-info/RECORD"
    record.write_text("".join(line for line in record.open() if not line.startswith("alpha/two.py")))
    before = tree(environment.site_packages)
    with pytest.raises(UserError, match=r"does not list alpha/two\.py"):
        engine.apply(environment, all_series, ())
    assert tree(environment.site_packages) == before


def test_stale_byte_code_goes_from_disk_and_record(environment: Environment, all_series: AllSeries) -> None:
    cache = environment.site_packages / "alpha" / "__pycache__"
    cache.mkdir()
    record = environment.site_packages / "alpha-1.0.dist-info/RECORD"
    for name in ("one.cpython-312.pyc", "one.cpython-312.opt-1.pyc", "one_more.cpython-312.pyc"):
        (cache / name).write_bytes(b"old")
        with record.open("a") as stream:
            stream.write(f"alpha/__pycache__/{name},,\n")
    engine.apply(environment, all_series, ())
    assert [path.name for path in cache.iterdir()] == ["one_more.cpython-312.pyc"]
    assert record_faults(environment.site_packages) == []
    assert "alpha/__pycache__/one_more.cpython-312.pyc,,\n" in record.read_text()


def test_a_hard_link_elsewhere_keeps_its_content(
    environment: Environment, all_series: AllSeries, tmp_path: Path
) -> None:
    file = environment.site_packages / "alpha/one.py"
    file.chmod(0o640)
    os.link(file, tmp_path / "cached.py")
    original = file.read_bytes()
    engine.apply(environment, all_series, ())
    assert (tmp_path / "cached.py").read_bytes() == original
    assert file.read_bytes() != original
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_patch_folder_that_was_changed_is_refused(environment: Environment, series_folder: Path) -> None:
    diff = series_folder / "alpha-1.0" / "base.patch"
    diff.write_bytes(diff.read_bytes().replace(b"+second = 22", b"+second = 23"))
    before = tree(environment.site_packages)
    with pytest.raises(UserError, match=r"patch base: alpha/one\.py: its diff gives SHA-256"):
        engine.apply(environment, load_all(series_folder), ())
    diff.write_bytes(diff.read_bytes().replace(b"-second = 2", b"-second = 3"))
    with pytest.raises(UserError, match=r"patch base: alpha/one\.py: its diff does not fit"):
        engine.apply(environment, load_all(series_folder), ())
    assert tree(environment.site_packages) == before

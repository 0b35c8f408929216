"""The command: exit codes, formats, targets, the cache; on small compiled environments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from sarif_pydantic import Sarif

from abi_checks import cache
from abi_checks.checks import CHECKS
from abi_checks.cli import main
from tests.abi_checks.environments import SITE_PACKAGES, Environment
from tests.abi_checks.fixtures import compile_object

SCHEMA = Path(cache.__file__).parent / "report" / "schema.json"
BROKEN = f"{SITE_PACKAGES}/pkg/_broken.so"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(cache, "SETTLED_NS", 0)  # files made a moment ago are kept
    return tmp_path / "cache"


@pytest.fixture
def clean(tmp_path: Path) -> Environment:
    environment = Environment(tmp_path / "home" / "someone" / "env")
    environment.add("pkg", "1.0", [environment.extension("pkg/_fine.so", "int f;")])
    return environment


@pytest.fixture
def broken(clean: Environment) -> Environment:
    path = clean.extension("pkg/_broken.so", "namespace c10 { void gone(int); } void f() { c10::gone(1); }")
    clean.torch()
    clean.add("pkg-broken", "2.0", [path])
    return clean


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def test_a_clean_environment_is_0_and_a_broken_one_1(
    clean: Environment, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(clean.root) == 0
    assert "1 object: 1 loads" in capsys.readouterr().out
    clean.extension("pkg/_broken.so", "int gone(); int f() { return gone(); }")
    assert run(clean.root) == 1
    assert "ERROR unresolved-symbol: no library in scope defines gone()" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["/no/such/place"], 3, "/no/such/place: no such file or folder"),
        (["gone.whl"], 3, "gone.whl: no such file or folder"),
        (["not a requirement!"], 2, "neither a file nor a requirement"),
        ([], 2, "name at least one TARGET"),
        (["--explain", "no-such-check"], 2, "there is no check 'no-such-check'; the checks are: "),
        ([".", "--python", "twelve"], 2, "--python takes a version such as 3.12"),
        ([".", "--with", "torch==2.9.1"], 2, "--with adds requirements to a requirement"),
        ([".", "--waivers", "gone.toml"], 3, "gone.toml: cannot read the waivers file"),
    ],
)
def test_usage_and_sources_have_their_exit_codes(
    arguments: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == code
    captured = capsys.readouterr()
    assert said in captured.err and "Traceback" not in captured.err


@pytest.mark.parametrize("text", ["waivers = 3", "[[waivers]]\ncheck = 'x'", "[[waivers", "expected = 1"])
def test_a_bad_waivers_file_is_usage(clean: Environment, tmp_path: Path, text: str) -> None:
    (tmp_path / "w.toml").write_text(text)
    assert run(clean.root, "--waivers", tmp_path / "w.toml") == 2


def test_json_fits_its_schema_and_has_the_facts(broken: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(broken.root, "--format", "json") == 1
    report = json.loads(capsys.readouterr().out)
    jsonschema.validate(report, json.loads(SCHEMA.read_text()))
    (item,) = [item for item in report["objects"] if item["path"] == BROKEN]
    assert item["verdict"] == "fails"
    assert item["unresolved_symbols"] == ["_ZN3c104goneEi"]
    assert item["distribution"] == "pkg-broken==2.0"
    assert report["versions"]["torch"] == "2.10.0"


def test_sarif_is_valid_and_keeps_waivers_as_suppressions(
    broken: Environment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waiver = """
        [[waivers]]
        check = "unresolved-symbol"
        object = "pkg/*"
        distribution = "pkg-broken==2.0"
        reason = "known"
    """
    (tmp_path / "w.toml").write_text(waiver)
    assert run(broken.root, "--format", "sarif", "--waivers", tmp_path / "w.toml") == 0
    text = capsys.readouterr().out
    Sarif.model_validate_json(text)
    (log,) = json.loads(text)["runs"]
    (result,) = [result for result in log["results"] if result["ruleId"] == "unresolved-symbol"]
    assert result["level"] == "error"
    assert result["suppressions"] == [{"kind": "external", "status": "accepted", "justification": "known"}]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": BROKEN, "uriBaseId": "TARGET"}
    assert log["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "unresolved-symbol"


def test_markdown_names_no_host_and_no_user(broken: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(broken.root, "--format", "markdown") == 1
    text = capsys.readouterr().out
    assert str(broken.root.parent) not in text and "someone" not in text and os.uname().nodename not in text
    assert "## error: unresolved-symbol" in text and "| torch | 2.10.0 |" in text


def test_the_sidecar_beside_an_environment_is_used(broken: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    (broken.root.parent / "waivers.toml").write_text('[expected]\ntorch = "2.9.1"\n')
    assert run(broken.root) == 1
    assert "torch 2.9.1 is expected, and 2.10.0 is installed" in capsys.readouterr().out


def test_one_object_is_judged_inside_its_environment(broken: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(broken.site / "pkg" / "_fine.so") == 0
    assert run(broken.root / BROKEN, "--format", "json") == 1
    report = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
    assert [item["path"] for item in report["objects"]] == [BROKEN]


def test_one_object_keeps_its_waiver(broken: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    waiver = (
        '[[waivers]]\ncheck = "unresolved-symbol"\nobject = "{}"\ndistribution = "pkg-broken==2.0"\nreason = "known"\n'
    )
    (broken.root.parent / "waivers.toml").write_text(waiver.format("pkg/*") + waiver.format("elsewhere/*"))
    assert run(broken.root / BROKEN) == 0
    assert "unused-waiver" not in capsys.readouterr().out


def test_an_object_alone_is_judged_as_far_as_can_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = compile_object(
        tmp_path / "alone.so", "namespace c10 { void gone(int); } void f() { c10::gone(1); }", language="c++"
    )
    assert run(path, "--format", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [item["verdict"] for item in report["objects"]] == ["unknown"]
    symbols = [finding for finding in report["findings"] if finding["check"] == "unresolved-symbol"]
    assert [finding["severity"] for finding in symbols] == ["unknown"]


def test_the_driver_can_be_required(clean: Environment, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stub = compile_object(tmp_path / "libcuda.so.1", "", soname="libcuda.so.1")
    clean.extension("pkg/_gpu.so", 'extern "C" int cuInit(int); int f() { return cuInit(0); }', needs=(stub,))
    assert run(clean.root) == 0
    assert "assumed, since this host has no NVIDIA driver: libcuda.so.1" in capsys.readouterr().out
    assert run(clean.root, "--driver", "require") == 1
    assert "libcuda.so.1 belongs to the NVIDIA driver" in capsys.readouterr().out


def test_the_report_is_written_whole_or_not_at_all(clean: Environment, tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    assert run(clean.root, "--format", "json", "--output", target) == 0
    assert json.loads(target.read_text())["schema_version"] == 1
    assert run(clean.root, "--output", tmp_path / "no" / "folder" / "report") == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "home", "report.json"]


def test_every_check_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for check in CHECKS:
        for check_id in check.ids:
            assert run("--explain", check_id) == 0
            text = capsys.readouterr().out
            assert check_id in text and "Looks for" in text and "Decides" in text and "Can't see" in text, check_id


def test_a_reader_that_goes_away_is_no_traceback(broken: Environment) -> None:
    command = f"{sys.executable} -m abi_checks --format json {broken.root} | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


class TestCache:
    """Facts are kept between runs, and never outlive the file they are of."""

    def facts(self, own_cache: Path) -> list[Path]:
        return list((own_cache / "cu130-stack" / "abi-check").glob("*.facts"))

    def report(self, environment: Environment, capsys: pytest.CaptureFixture[str], *more: str) -> str:
        run(environment.root, "--format", "json", *more)
        return capsys.readouterr().out

    def test_a_second_run_says_the_same(
        self, broken: Environment, own_cache: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        without = self.report(broken, capsys, "--no-cache")
        assert not self.facts(own_cache)
        first = self.report(broken, capsys)
        assert len(self.facts(own_cache)) == 1
        assert self.report(broken, capsys) == first == without

    def test_a_changed_file_is_read_again(self, clean: Environment, capsys: pytest.CaptureFixture[str]) -> None:
        assert '"fails"' not in self.report(clean, capsys)
        clean.extension("pkg/_fine.so", "int gone(); int f() { return gone(); }")
        assert '"fails"' in self.report(clean, capsys)

    @pytest.mark.parametrize("damage", [b"", b"\x00\x01\x02", b"[1, 2"])
    def test_a_damaged_cache_is_not_used(
        self, broken: Environment, own_cache: Path, capsys: pytest.CaptureFixture[str], damage: bytes
    ) -> None:
        first = self.report(broken, capsys)
        (path,) = self.facts(own_cache)
        path.write_bytes(damage)
        assert self.report(broken, capsys) == first

    def test_a_cache_that_cannot_be_written_is_no_failure(
        self, clean: Environment, own_cache: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        own_cache.write_text("in the way")
        assert '"loads"' in self.report(clean, capsys)

    def test_two_runs_at_once_both_end_well(self, broken: Environment, own_cache: Path) -> None:
        for path in broken.root.rglob("*.so"):
            os.utime(path, (0, 0))  # what was made a moment ago is not kept
        command = [sys.executable, "-m", "abi_checks", "--format", "json", str(broken.root)]
        runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
        outputs = [process.communicate(timeout=120) for process in runs]
        assert {process.returncode for process in runs} == {1}
        assert len({output for output, _ in outputs}) == 1 and all(errors == b"" for _, errors in outputs)
        assert [path.name for path in self.facts(own_cache)[0].parent.iterdir()] == [self.facts(own_cache)[0].name]

    def test_targets_judged_long_ago_are_forgotten(
        self, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache, "TARGETS_KEPT", 2)
        for name in ("one", "two", "three"):
            compile_object(tmp_path / name / "x.so", "int x;")
            assert run(tmp_path / name) == 0
        assert len(self.facts(own_cache)) == 2

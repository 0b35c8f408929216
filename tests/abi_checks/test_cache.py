"""The scan cache: what it saves, and that whatever changes is seen."""

from __future__ import annotations

import marshal
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from abi_checks import answers, cache
from abi_checks.answers import Answers, Question
from abi_checks.bytesource import BufferSource
from abi_checks.cache_rows import (
    answers_of_row,
    distribution_of_row,
    object_of_row,
    row_of_answers,
    row_of_distribution,
    row_of_object,
)
from abi_checks.elf_facts import Section, Symbols
from abi_checks.errors import SourceError
from abi_checks.facts import ObjectFacts, ReadFacts
from abi_checks.fatbin import CodeKind, DeviceCode, FatBinaries
from abi_checks.process import ProcessState
from abi_checks.resolution import Crowded, Found, Missing, Resolution, Unresolved, Verdict
from abi_checks.scan import Scan, scan
from abi_checks.search import LoaderOptions
from abi_checks.sources.folder import FileTarget, FolderSource
from abi_checks.sources.interface import Distribution, SourceObject, Unreadable
from tests.abi_checks.checks.scans import make_object
from tests.abi_checks.environments import SITE_PACKAGES, Environment
from tests.abi_checks.fixtures import compile_object

USES_HELP = "int help(); int f() { return help(); }"
GIVES_HELP = "int help() { return 1; }"
USER = f"{SITE_PACKAGES}/pkg/_user.so"


@pytest.fixture(autouse=True)
def everything_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files made a moment ago are kept, unless a test says otherwise."""
    monkeypatch.setattr(cache, "SETTLED_NS", 0)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the host that the loader looks into for the environment's object."""
    folder = tmp_path / "outside"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(tmp_path: Path, outside: Path) -> Environment:
    """An environment with one object, which needs libhelp.so.1 of the host, and lies in one distribution."""
    made = Environment(tmp_path / "env")
    stub = compile_object(tmp_path / "libhelp.so.1", "", soname="libhelp.so.1")
    user = made.extension("pkg/_user.so", USES_HELP, f"-Wl,-rpath,{outside}", needs=(stub,), language="c")
    made.torch()
    made.add("pkg", "1.0", [user])
    return made


@pytest.fixture
def helped(environment: Environment, outside: Path) -> Environment:
    """The same, with that library there."""
    compile_object(outside / "libhelp.so.1", GIVES_HELP, soname="libhelp.so.1")
    return environment


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often something was really read, listed or asked."""
    counts: Counter[str] = Counter()

    def count(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object) -> object:
            counts[name] += 1
            return real(*arguments)

        return counted

    for name in ("ask", "list_folder", "read_distribution"):
        monkeypatch.setattr(cache, name, count(name, getattr(cache, name)))
    read = ReadFacts.__call__

    def counted_read(self: ReadFacts, item: SourceObject | Unreadable) -> object:
        counts["read_facts"] += 1
        return read(self, item)

    monkeypatch.setattr(ReadFacts, "__call__", counted_read)
    return counts


def judge(environment: Environment, *library_path: Path, assume_driver: bool = True) -> Scan:
    return scan(
        FolderSource(environment.root),
        library_path=tuple(map(str, library_path)),
        assume_driver=assume_driver,
        cache=environment.root.parent / "cache",
    )


def verdicts(found: Scan) -> Mapping[str, Verdict]:
    return {found.relative(path): verdict for path, verdict in found.verdicts.items()}


def rewrite(path: Path, data: bytes) -> None:
    """Other content in the same file, of the same size and the same time of last change."""
    before = path.stat()
    assert len(data) == before.st_size
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_nothing_is_done_twice(helped: Environment, work: Counter[str]) -> None:
    first = judge(helped)
    assert work["ask"] == 1 and work["read_facts"] == 4 and work["read_distribution"] == 2 and work["list_folder"] > 5
    work.clear()
    second = judge(helped)
    assert not work
    assert second == first and second.sonames == first.sonames and second.needed_of_torch == first.needed_of_torch
    assert second.resolutions == first.resolutions and second.process == first.process
    assert [facts.symbols for facts in second.objects] == [facts.symbols for facts in first.objects]


def test_what_changed_a_moment_ago_is_not_kept(
    helped: Environment, work: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SETTLED_NS", 3600 * 10**9)
    judge(helped)
    first = dict(work)
    work.clear()
    judge(helped)
    assert dict(work) == first


def test_other_code_starts_anew(helped: Environment, work: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    judge(helped)
    first = dict(work)
    work.clear()
    monkeypatch.setattr(cache, "_code_checksum", lambda: 1)
    judge(helped)
    assert dict(work) == first


def test_a_cache_that_says_all_already_is_not_written_again(helped: Environment) -> None:
    judge(helped)
    (path,) = (helped.root.parent / "cache").glob("*.facts")
    before = path.stat().st_ino
    judge(helped)
    assert path.stat().st_ino == before
    helped.add("other", "2.0")
    judge(helped)
    assert path.stat().st_ino != before


def test_an_object_alone_leaves_no_cache(tmp_path: Path) -> None:
    path = compile_object(tmp_path / "alone" / "x.so", "int x;")
    assert verdicts(scan(FileTarget(path), cache=tmp_path / "cache")) == {"x.so": Verdict.LOADS}
    assert not (tmp_path / "cache").exists()


class TestTheTarget:
    """Changes in the target are seen."""

    def test_a_new_object(self, helped: Environment) -> None:
        judge(helped)
        helped.extension("pkg/_new.so", USES_HELP)
        assert verdicts(judge(helped))[f"{SITE_PACKAGES}/pkg/_new.so"] is Verdict.FAILS

    def test_a_new_folder(self, helped: Environment) -> None:
        judge(helped)
        helped.extension("pkg/deep/down/_new.so", "int f;")
        assert f"{SITE_PACKAGES}/pkg/deep/down/_new.so" in verdicts(judge(helped))

    def test_an_object_that_is_gone(self, helped: Environment) -> None:
        judge(helped)
        (helped.root / USER).unlink()
        assert USER not in verdicts(judge(helped))

    def test_an_object_made_anew(self, helped: Environment) -> None:
        assert verdicts(judge(helped))[USER] is Verdict.LOADS
        helped.extension("pkg/_user.so", "int gone(); int f() { return gone(); }")
        assert verdicts(judge(helped))[USER] is Verdict.FAILS

    def test_an_object_that_is_no_object_any_more(self, helped: Environment) -> None:
        judge(helped)
        (helped.root / USER).write_bytes(b"\x7fELF")
        found = judge(helped)
        assert [item.path for item in found.unreadable] == [USER]

    def test_a_link_that_leads_elsewhere(self, helped: Environment, tmp_path: Path) -> None:
        link = helped.site / "pkg" / "_link.so"
        good = compile_object(tmp_path / "good.so", "int f;")
        bad = compile_object(tmp_path / "bad.so", USES_HELP)
        link.symlink_to(good)
        assert verdicts(judge(helped))[f"{SITE_PACKAGES}/pkg/_link.so"] is Verdict.LOADS
        good.unlink()
        bad.rename(good)
        assert verdicts(judge(helped))[f"{SITE_PACKAGES}/pkg/_link.so"] is Verdict.FAILS
        good.unlink()
        assert [item.reason for item in judge(helped).unreadable] == ["a broken symbolic link"]

    def test_a_new_owner(self, helped: Environment) -> None:
        assert judge(helped).owner_label(str(helped.root / USER)) == "pkg==1.0"
        (helped.site / "pkg-1.0.dist-info" / "RECORD").write_text("")
        assert judge(helped).owner_label(str(helped.root / USER)) == ""

    def test_a_new_distribution(self, helped: Environment) -> None:
        judge(helped)
        helped.add("other", "2.0")
        assert judge(helped).installed("other") is not None

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read any folder")
    def test_a_folder_that_may_not_be_read_any_more(self, helped: Environment) -> None:
        judge(helped)
        folder = helped.site / "pkg"
        folder.chmod(0)
        try:
            assert f"{SITE_PACKAGES}/pkg" in [item.path for item in judge(helped).unreadable]
        finally:
            folder.chmod(0o755)


class TestTheHost:
    """Changes outside the target that the loader would notice are seen."""

    def test_a_library_appears(self, environment: Environment, outside: Path) -> None:
        assert verdicts(judge(environment))[USER] is Verdict.FAILS
        compile_object(outside / "libhelp.so.1", GIVES_HELP, soname="libhelp.so.1")
        assert verdicts(judge(environment))[USER] is Verdict.LOADS

    def test_a_library_is_gone(self, helped: Environment, outside: Path) -> None:
        assert verdicts(judge(helped))[USER] is Verdict.LOADS
        (outside / "libhelp.so.1").unlink()
        assert verdicts(judge(helped))[USER] is Verdict.FAILS

    def test_a_library_is_rewritten_in_place_with_its_time_kept(self, helped: Environment, outside: Path) -> None:
        assert verdicts(judge(helped))[USER] is Verdict.LOADS
        library = outside / "libhelp.so.1"
        rewrite(library, library.read_bytes().replace(b"\0help\0", b"\0hemp\0"))
        assert verdicts(judge(helped))[USER] is Verdict.FAILS

    def test_the_folder_comes_into_being(self, environment: Environment, outside: Path) -> None:
        outside.rmdir()
        assert verdicts(judge(environment))[USER] is Verdict.FAILS
        compile_object(outside / "libhelp.so.1", GIVES_HELP, soname="libhelp.so.1")
        assert verdicts(judge(environment))[USER] is Verdict.LOADS

    def test_a_library_in_a_folder_searched_earlier(self, helped: Environment, tmp_path: Path) -> None:
        earlier = tmp_path / "earlier"
        earlier.mkdir()
        assert verdicts(judge(helped, earlier))[USER] is Verdict.LOADS
        compile_object(earlier / "libhelp.so.1", "int other;", soname="libhelp.so.1")
        assert verdicts(judge(helped, earlier))[USER] is Verdict.FAILS

    def test_ld_library_path(self, environment: Environment, tmp_path: Path) -> None:
        more = compile_object(tmp_path / "more" / "libhelp.so.1", GIVES_HELP, soname="libhelp.so.1").parent
        assert verdicts(judge(environment))[USER] is Verdict.FAILS
        assert verdicts(judge(environment, more))[USER] is Verdict.LOADS
        assert verdicts(judge(environment))[USER] is Verdict.FAILS


def question_of(environment: Environment) -> Question:
    source = FolderSource(environment.root)
    objects = [item for item in source.map_objects(ReadFacts(source.root)) if item and not isinstance(item, Unreadable)]
    return Question(
        root=source.root,
        on_disk=True,
        objects=objects,
        folders=source.folders(),
        interpreter=str(source.interpreter),
        torch_version="2.10.0",
        torch_files=frozenset({f"{SITE_PACKAGES}/torch/lib/libc10.so"}),
        options=LoaderOptions(62),
    )


class TestTheQuestion:
    """Every part of a question has a part in its key."""

    def test_the_same_question_has_the_same_key(self, helped: Environment) -> None:
        assert question_of(helped).key() == question_of(helped).key()

    @pytest.mark.parametrize(
        "change",
        [
            {"root": "/elsewhere"},
            {"on_disk": False},
            {"objects": []},
            {"folders": {}},
            {"interpreter": "/bin/sh"},
            {"torch_version": "2.9.1"},
            {"torch_files": frozenset()},
            {"options": LoaderOptions(183)},
            {"options": LoaderOptions(62, ("/opt",))},
            {"options": LoaderOptions(62, (), False)},
        ],
        ids=str,
    )
    def test_another_question(self, helped: Environment, change: dict[str, object]) -> None:
        question = question_of(helped)
        assert replace(question, **change).key() != question.key()  # type: ignore[arg-type]

    @pytest.mark.parametrize("change", [{"stamp": (1, 2, 3, 4)}, {"aliases": ("/env/other.so",)}], ids=str)
    def test_another_state_of_an_object(self, helped: Environment, change: dict[str, object]) -> None:
        question = question_of(helped)
        first, *rest = question.objects
        changed = replace(first, **change)  # type: ignore[arg-type]
        assert replace(question, objects=[changed, *rest]).key() != question.key()

    @pytest.mark.parametrize(
        ("name", "value"),
        [("LIB", "lib32"), ("hwcaps_levels", lambda: ("x",)), ("read_host_cache", lambda: b"other")],
    )
    def test_another_host(self, helped: Environment, name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
        before = question_of(helped).key()
        monkeypatch.setattr(answers, name, value)
        assert question_of(helped).key() != before

    def test_another_interpreter_behind_the_link(self, helped: Environment) -> None:
        before = question_of(helped).key()
        python = helped.root / "bin" / "python"
        python.unlink()
        python.symlink_to("/bin/sh")
        assert question_of(helped).key() != before


class TestDamage:
    """A damaged cache file gives no answer."""

    def cache_file(self, environment: Environment) -> Path:
        (path,) = (environment.root.parent / "cache").glob("*.facts")
        return path

    @pytest.mark.parametrize("at", [-100, -19, -3])
    def test_of_what_every_run_reads(self, helped: Environment, work: Counter[str], at: int) -> None:
        first = judge(helped)
        path = self.cache_file(helped)
        data = bytearray(path.read_bytes())
        data[at] ^= 0xFF
        path.write_bytes(data)
        work.clear()
        assert judge(helped).resolutions == first.resolutions
        assert work["ask"] == 1 and work["read_facts"] == 4

    @pytest.mark.parametrize(("at", "asked"), [(0, "undefined"), (8, "defined"), (8, "versions")])
    def test_of_symbols(self, helped: Environment, at: int, asked: str) -> None:
        judge(helped)
        path = self.cache_file(helped)
        data = bytearray(path.read_bytes())
        data[at] ^= 0xFF  # in the first object's checksums
        path.write_bytes(data)
        found = judge(helped)
        assert verdicts(found)[USER] is Verdict.LOADS
        with pytest.raises(SourceError, match="the scan cache is damaged: remove it, or use --no-cache"):
            assert getattr(found.objects[0].symbols, asked)


def test_a_row_has_all_of_an_object() -> None:
    code = DeviceCode(CodeKind.PTX, 90, "a", (9, 1))
    groups = (FatBinaries(True, (code,), 2), FatBinaries(False, (replace(code, kind=CodeKind.SM), code), 1))
    symbols = Symbols(((b"f", b"V_1"),), frozenset({b"g"}), {b"g": ((b"V_2", True),)})
    elf = make_object(
        "pkg/x.so", soname="x", needed=("y",), rpath=("/r",), runpath=("/s",), flags_1=8, undefined=symbols.undefined,
        versions_defined=frozenset({"V_2"}), versions_needed=(("y", ("V_1",)),), has_version_definitions=True,
        device_sections=(Section(".nv_fatbin", 64, 128),), has_interpreter=True,
    )  # fmt: skip
    facts = ObjectFacts(replace(elf, symbols=symbols), groups, "odd", ("/env/alias.so",), (1, 2), (1, 2, 3, 4))
    row = marshal.loads(marshal.dumps(row_of_object(facts)))
    item = SourceObject(elf.path.removeprefix("/env/"), BufferSource(b""), ("alias.so",), (1, 2), (1, 2, 3, 4))
    assert object_of_row(row, symbols, item, "/env") == facts


def test_a_row_has_all_answers() -> None:
    answer = Resolution(
        "/env/a.so", Verdict.FAILS, {"b": Found("/b", "RUNPATH")}, (Missing("c", "/env/a.so", ("no",)),),
        (Unresolved("f", "V", "/env/a.so", "/d"),), "why", frozenset({"/b"}), Crowded("/f", 3, 2, 1), True,
    )  # fmt: skip
    state = ProcessState("/python", "problem", True, (answer,), frozenset({"/e"}))
    whole = Answers(
        state, (answer,), {"/env/a.so": (answer, ("/env/g.so",))}, ("libcuda.so.1",), {"/h": "h"}, {"/i": (b"j",)}
    )
    assert answers_of_row(marshal.loads(marshal.dumps(row_of_answers(whole)))) == whole


def test_a_row_has_all_of_a_distribution() -> None:
    found = Distribution("a", "1", "lib/a-1.dist-info", ("b>1",), ("py3-none-any",), frozenset({"lib/a.py"}))
    assert distribution_of_row(marshal.loads(marshal.dumps(row_of_distribution(found)))) == found


def test_facts_of_the_cache_equal_those_of_the_file(helped: Environment) -> None:
    first, second = judge(helped), judge(helped)
    assert isinstance(first.objects[0].symbols, Symbols) and not isinstance(second.objects[0].symbols, Symbols)
    assert second.objects == first.objects and first.objects == second.objects
    assert second.objects[0].symbols != replace(first.objects[0].symbols, undefined=((b"x", None),))

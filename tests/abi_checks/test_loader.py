"""The emulated loader against the real one, one situation of ld.so(8) at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from abi_checks.resolution import Verdict
from abi_checks.scan import scan
from abi_checks.sources.folder import FolderSource
from tests.abi_checks.fixtures import compile_object, version_script
from tests.abi_checks.oracle import dlopen_each

Scene = Callable[[Path], list[Path] | None]
SCENES: dict[str, Scene] = {}


def scene(build: Scene) -> Scene:
    """Register a situation: builds objects below the folder, may return folders for LD_LIBRARY_PATH."""
    SCENES[build.__name__] = build
    return build


def library(
    folder: Path, name: str = "liba.so", symbol: str = "from_a", *flags: str, needs: tuple[Path, ...] = ()
) -> Path:
    return compile_object(folder / name, f"int {symbol}(void) {{ return 1; }}", *flags, soname=name, needs=needs)


def user(path: Path, *flags: str, needs: tuple[Path, ...] = (), symbol: str = "from_a") -> Path:
    return compile_object(path, f"int {symbol}(void); int use(void) {{ return {symbol}(); }}", *flags, needs=needs)


@scene
def nothing_needed(top: Path) -> None:
    compile_object(top / "x.so", "int x(void) { return 0; }")


@scene
def undefined_symbol(top: Path) -> None:
    user(top / "x.so")


@scene
def undefined_weak_symbol(top: Path) -> None:
    compile_object(top / "x.so", "__attribute__((weak)) int gone(void); int use(void) { return gone ? gone() : 0; }")


@scene
def runpath_of_the_requester(top: Path) -> None:
    a = library(top / "libs")
    user(top / "x.so", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/libs", needs=(a,))


@scene
def runpath_is_not_inherited(top: Path) -> None:
    b = library(top / "deep", "libb.so", "from_b")
    a = library(top / "libs", "liba.so", "from_a", needs=(b,))
    user(top / "x.so", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/libs:$ORIGIN/deep", needs=(a,))


@scene
def rpath_of_an_ancestor(top: Path) -> None:
    b = library(top / "deep", "libb.so", "from_b")
    a = library(top / "libs", "liba.so", "from_a", needs=(b,))
    user(top / "x.so", "-Wl,--disable-new-dtags,-rpath,$ORIGIN/libs:$ORIGIN/deep", needs=(a,))


@scene
def rpath_of_an_ancestor_is_cut_off_by_runpath(top: Path) -> None:
    b = library(top / "deep", "libb.so", "from_b")
    a = library(top / "libs", "liba.so", "from_a", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/elsewhere", needs=(b,))
    user(top / "x.so", "-Wl,--disable-new-dtags,-rpath,$ORIGIN/libs:$ORIGIN/deep", needs=(a,))


@scene
def library_path(top: Path) -> list[Path]:
    user(top / "x.so", needs=(library(top / "libs"),))
    return [top / "libs"]


@scene
def library_path_before_runpath(top: Path) -> list[Path]:
    a = library(top / "good")
    library(top / "bad", "liba.so", "something_else")
    user(top / "x.so", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/good", needs=(a,))
    return [top / "bad"]


@scene
def rpath_before_library_path(top: Path) -> list[Path]:
    a = library(top / "good")
    library(top / "bad", "liba.so", "something_else")
    user(top / "x.so", "-Wl,--disable-new-dtags,-rpath,$ORIGIN/good", needs=(a,))
    return [top / "bad"]


@scene
def loaded_under_its_soname(top: Path) -> None:
    # x needs the file other.so, whose soname is liba.so; y beneath it needs liba.so, which is nowhere else.
    a = compile_object(top / "libs" / "other.so", "int from_a(void) { return 1; }", soname="liba.so")
    y = user(top / "libs" / "liby.so", needs=(a,), symbol="from_a")
    compile_object(
        top / "x.so", "", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/libs", f"-L{top}/libs", "-l:other.so", needs=(y,)
    )


@scene
def needed_with_a_slash(top: Path) -> None:
    a = compile_object(top / "libs" / "liba.so", "int from_a(void) { return 1; }")  # no soname: NEEDED has the path
    user(top / "x.so", needs=(a,))


@scene
def symbol_two_libraries_down(top: Path) -> None:
    b = library(top, "libb.so", "from_b")
    a = library(top, "liba.so", "from_a", "-Wl,-rpath,$ORIGIN", needs=(b,))
    user(top / "x.so", "-Wl,-rpath,$ORIGIN", needs=(a,), symbol="from_b")


@scene
def libraries_that_need_each_other(top: Path) -> None:
    a = library(top, "liba.so", "from_a")
    b = library(top, "libb.so", "from_b", "-Wl,-rpath,$ORIGIN", needs=(a,))
    compile_object(
        top / "liba.so", "int from_b(void); int from_a(void) { return from_b(); }", "-Wl,-rpath,$ORIGIN",
        soname="liba.so", needs=(b,),
    )  # fmt: skip
    user(top / "x.so", "-Wl,-rpath,$ORIGIN", needs=(b,))


@scene
def a_dependency_lacks_a_symbol(top: Path) -> None:
    a = compile_object(top / "liba.so", "int gone(void); int from_a(void) { return gone(); }", soname="liba.so")
    user(top / "x.so", "-Wl,-rpath,$ORIGIN", needs=(a,))


@scene
def the_root_lends_a_dependency_its_symbol(top: Path) -> None:
    a = compile_object(top / "liba.so", "int mine(void); int from_a(void) { return mine(); }", soname="liba.so")
    compile_object(
        top / "x.so", "int from_a(void); int mine(void) { return 2; } int use(void) { return from_a(); }",
        "-Wl,-rpath,$ORIGIN", needs=(a,),
    )  # fmt: skip


@scene
def hidden_symbol(top: Path) -> None:
    a = compile_object(
        top / "liba.so", '__attribute__((visibility("hidden"))) int from_a(void) { return 1; }', soname="liba.so"
    )
    user(top / "x.so", "-Wl,-rpath,$ORIGIN", needs=(a,))


@scene
def protected_tls_and_indirect_symbols(top: Path) -> None:
    a = compile_object(
        top / "liba.so",
        "__thread int from_thread = 3; int one(void) { return 1; } void *choose(void) { return one; }"
        '__attribute__((visibility("protected"))) int from_protected(void) { return 2; }'
        'int from_indirect(void) __attribute__((ifunc("choose")));',
        soname="liba.so",
    )
    compile_object(
        top / "x.so",
        "extern __thread int from_thread; int from_protected(void); int from_indirect(void);"
        "int use(void) { return from_thread + from_protected() + from_indirect(); }",
        "-Wl,-rpath,$ORIGIN",
        needs=(a,),
    )


@scene
def version_present(top: Path) -> None:
    a = library(top, "liba.so", "from_a", version_script(top, "A_1 { global: from_a; local: *; };"))
    user(top / "x.so", "-Wl,-rpath,$ORIGIN", needs=(a,))


@scene
def version_gone(top: Path) -> None:
    a = library(top, "liba.so", "from_a", version_script(top, "A_2 { global: from_a; local: *; };"))
    user(top / "x.so", "-Wl,-rpath,$ORIGIN", needs=(a,))
    library(top, "liba.so", "from_a", version_script(top, "A_1 { global: from_a; local: *; };"))


@scene
def version_there_and_symbol_under_another(top: Path) -> None:
    script = "A_1 { global: from_a; local: *; }; A_2 { global: more; } A_1;"
    more = "int more(void) { return 2; } "
    a = compile_object(
        top / "liba.so", more + "int from_a(void) { return 1; }", version_script(top, script), soname="liba.so"
    )
    user(top / "x.so", "-Wl,-rpath,$ORIGIN", needs=(a,))
    moved = "A_1 { global: more; local: *; }; A_2 { global: from_a; } A_1;"
    compile_object(a, more + "int from_a(void) { return 1; }", version_script(top, moved), soname="liba.so")


@scene
def library_that_lost_all_its_versions(top: Path) -> None:
    a = library(top, "liba.so", "from_a", version_script(top, "A_1 { global: from_a; local: *; };"))
    user(top / "x.so", "-Wl,-rpath,$ORIGIN", needs=(a,))
    library(top, "liba.so", "from_a")


@scene
def unversioned_reference_to_a_hidden_version(top: Path) -> None:
    a = library(top, "liba.so", "from_a")
    user(top / "x.so", "-Wl,-rpath,$ORIGIN", needs=(a,))
    compile_object(
        a,
        'int old(void) { return 1; } __asm__(".symver old, from_a@A_1"); int other(void) { return 2; }',
        version_script(top, "A_1 { local: old; }; A_2 { global: other; } A_1;"),
        soname="liba.so",
    )


@scene
def library_for_another_machine_is_passed_over(top: Path) -> None:
    a = library(top / "good")
    wrong = library(top / "bad")
    data = bytearray(wrong.read_bytes())
    data[18:20] = (243).to_bytes(2, "little")  # e_machine: RISC-V
    wrong.write_bytes(data)
    user(top / "x.so", "-Wl,-rpath,$ORIGIN/bad:$ORIGIN/good", needs=(a,))


@scene
def object_for_another_machine(top: Path) -> None:
    data = bytearray(compile_object(top / "x.so", "int x;").read_bytes())
    data[18:20] = (243).to_bytes(2, "little")
    (top / "x.so").write_bytes(data)


@scene
def hwcaps_folder_first(top: Path) -> None:
    a = library(top / "libs")
    library(top / "libs" / "glibc-hwcaps" / "x86-64-v2", "liba.so", "something_else")
    user(top / "x.so", "-Wl,-rpath,$ORIGIN/libs", needs=(a,))


@scene
def linked_against_opening(top: Path) -> None:
    compile_object(top / "x.so", "int x;", "-Wl,-z,nodlopen")


@scene
def position_independent_executable(top: Path) -> None:
    compile_object(top / "x.so", "int main(void) { return 0; }", "-pie", shared=False)


@scene
def no_default_folders(top: Path) -> None:
    compile_object(top / "x.so", "int x;", "-Wl,-z,nodefaultlib", "-lresolv")


@scene
def hash_tables_of_both_kinds(top: Path) -> None:
    a = library(top, "liba.so", "from_a", "-Wl,--hash-style=sysv")
    b = library(top, "libb.so", "from_b", "-Wl,--hash-style=gnu")
    compile_object(
        top / "x.so", "int from_a(void); int from_b(void); int use(void) { return from_a() + from_b(); }",
        "-Wl,-rpath,$ORIGIN", "-Wl,--hash-style=gnu", needs=(a, b),
    )  # fmt: skip


@scene
def link_to_a_library(top: Path) -> None:
    a = library(top / "real")
    (top / "libs").mkdir()
    (top / "libs" / "liba.so").symlink_to("../real/liba.so")
    user(top / "x.so", "-Wl,-rpath,$ORIGIN/libs", needs=(a,))


@scene
def library_is_a_text_file(top: Path) -> None:
    a = library(top)
    user(top / "x.so", "-Wl,-rpath,$ORIGIN", needs=(a,))
    a.write_text("/* GNU ld script */ INPUT(libb.so)\n")


@scene
def symbols_of_the_interpreter(top: Path) -> None:
    compile_object(top / "x.so", "int PyErr_Occurred(void); int use(void) { return PyErr_Occurred(); }")


@scene
def symbols_of_no_interpreter(top: Path) -> None:
    compile_object(top / "x.so", "int PyNoSuch_Thing(void); int use(void) { return PyNoSuch_Thing(); }")


@pytest.mark.parametrize("name", SCENES)
def test_verdicts_equal_the_loaders(name: str, tmp_path: Path) -> None:
    library_folders = SCENES[name](tmp_path) or []
    facts = scan(FolderSource(tmp_path), library_path=[str(folder) for folder in library_folders])
    ours = {resolution.path: resolution.verdict is Verdict.LOADS for resolution in facts.resolutions}
    assert os.path.join(tmp_path, "x.so") in ours
    truth = dlopen_each(sys.executable, list(ours), library_path=library_folders)
    assert ours == {path: answer == "ok" for path, answer in truth.items()}, truth


def test_a_missing_library_names_the_places_in_order(tmp_path: Path) -> None:
    a = library(tmp_path / "gone")
    user(tmp_path / "x.so", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/one:$ORIGIN/two", needs=(a,))
    a.unlink()
    (resolution,) = scan(FolderSource(tmp_path), library_path=["/nowhere"]).resolutions
    (gap,) = resolution.missing
    assert gap.library == "liba.so"
    assert gap.considered[:3] == (
        "LD_LIBRARY_PATH: /nowhere: no such file",
        f"RUNPATH of {tmp_path}/x.so: {tmp_path}/one: no such file",
        f"RUNPATH of {tmp_path}/x.so: {tmp_path}/two: no such file",
    )


def test_found_via_names_the_rule(tmp_path: Path) -> None:
    a = library(tmp_path / "libs")
    user(tmp_path / "x.so", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/libs", needs=(a,))
    resolution = scan(FolderSource(tmp_path)).resolutions[1]
    assert resolution.found["liba.so"].path == str(a)
    assert resolution.found["liba.so"].found_via == f"RUNPATH of {tmp_path}/x.so"


def test_the_driver_is_assumed_and_its_symbols_are_known_by_name(tmp_path: Path) -> None:
    source = "int cuInit(int); int cuFileOpen(void); int use(void) { return cuInit(0) + cuFileOpen(); }"
    stub = compile_object(tmp_path / "stub" / "libcuda.so.1", "", soname="libcuda.so.1")
    compile_object(tmp_path / "env" / "x.so", source, needs=(stub,))
    assumed = scan(FolderSource(tmp_path / "env"))
    assert assumed.assumed_driver == ("libcuda.so.1",)
    assert [lack.symbol for lack in assumed.resolutions[0].unresolved] == ["cuFileOpen"]
    required = scan(FolderSource(tmp_path / "env"), assume_driver=False)
    assert [gap.library for gap in required.resolutions[0].missing] == ["libcuda.so.1"]


def test_without_an_interpreter_what_is_cpythons_is_assumed(tmp_path: Path) -> None:
    library = compile_object(tmp_path / "stub" / "libpython3.99.so.1.0", "", soname="libpython3.99.so.1.0")
    source = """int PyErr_Occurred(void); int gone(void); double lgamma(double);
    double use(void) { return PyErr_Occurred() + gone() + lgamma(gone()); }"""
    compile_object(tmp_path / "env" / "x.so", source, needs=(library,))
    target = FolderSource(tmp_path / "env")
    target.interpreter = tmp_path / "no-python"
    (resolution,) = scan(target).resolutions
    assert resolution.missing == ()
    assert [lack.symbol for lack in resolution.unresolved] == ["gone"]

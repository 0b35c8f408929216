"""Static TLS: who must lie there and what fits, against the real loader and pyelftools."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from abi_checks.api import check_environment
from abi_checks.bytesource import FileSource
from abi_checks.elf import read_elf
from abi_checks.elf_facts import ElfFacts
from abi_checks.resolution import Verdict
from abi_checks.scan import Scan, scan
from abi_checks.sources.folder import FolderSource
from tests.abi_checks.fixtures import compile_object
from tests.abi_checks.oracle import dlopen_each

INITIAL_EXEC, DYNAMIC = "initial-exec", "global-dynamic"


def block(
    path: Path,
    size: int,
    alignment: int = 8,
    model: str = INITIAL_EXEC,
    storage: str = "",
    needs: tuple[Path, ...] = (),
) -> Path:
    """An object whose code reaches thread-local variables of so many bytes by this model."""
    name = path.name.split(".")[0].replace("-", "_")
    source = f"""{storage} __attribute__((tls_model("{model}"), aligned({alignment}))) __thread char of_{name}[{size}];
    char *at_{name}(int i) {{ of_{name}[i] = 1; return of_{name} + i; }}"""
    return compile_object(path, source, soname=path.name, needs=needs)


def facts_of(path: Path) -> ElfFacts:
    with FileSource(path) as data:
        return read_elf(data, str(path))


def assert_as_the_loader_says(folder: Path, preload: str = "pass") -> Scan:
    facts = scan(FolderSource(folder))
    ours = {resolution.path: resolution.verdict is Verdict.LOADS for resolution in facts.resolutions}
    truth = dlopen_each(sys.executable, list(ours), preload=preload)
    assert ours == {path: answer == "ok" for path, answer in truth.items()}, truth
    return facts


@pytest.mark.parametrize("alignment", [1, 8, 16, 64, 128])
def test_every_size_around_the_limit(alignment: int, tmp_path: Path) -> None:
    step = max(8, alignment)
    for size in [step, *range(1600 // step * step, 1800, step)]:
        block(tmp_path / f"x{size}.so", size, alignment)
    facts = assert_as_the_loader_says(tmp_path)
    verdicts = {resolution.verdict for resolution in facts.resolutions}
    # glibc serves no alignment above that of the thread's own control block after the start.
    assert verdicts == ({Verdict.FAILS} if alignment == 128 else {Verdict.LOADS, Verdict.FAILS})


def test_only_own_variables_at_a_fixed_distance_need_room(tmp_path: Path) -> None:
    block(tmp_path / "dynamic.so", 1 << 20, model=DYNAMIC)
    block(tmp_path / "static.so", 4096, storage="static")
    small = block(tmp_path / "small.so", 8)
    source = """extern __attribute__((tls_model("initial-exec"))) __thread char of_small[8];
    __thread char own[4096]; char *f(int i) { return i ? own + i : of_small; }"""
    compile_object(tmp_path / "foreign.so", source, "-Wl,-rpath,$ORIGIN", needs=(small,))
    assert_as_the_loader_says(tmp_path)
    kinds = {name: facts_of(tmp_path / name).initial_exec for name in ("dynamic.so", "static.so", "foreign.so")}
    assert kinds == {"dynamic.so": False, "static.so": True, "foreign.so": False}


def test_what_an_object_brings_along_counts(tmp_path: Path) -> None:
    first = block(tmp_path / "libfirst.so", 800)
    second = block(tmp_path / "libsecond.so", 800)
    for name, needs in (("both", (first, second)), ("one", (first,))):
        source = (
            f'__attribute__((tls_model("initial-exec"))) __thread char {name}[200]; char *f(void) {{ return {name}; }}'
        )
        compile_object(tmp_path / f"{name}.so", source, "-Wl,-rpath,$ORIGIN", needs=needs)
    facts = assert_as_the_loader_says(tmp_path)
    failing = [resolution for resolution in facts.resolutions if resolution.verdict is Verdict.FAILS]
    assert [os.path.basename(resolution.path) for resolution in failing] == ["both.so"]


def test_what_import_torch_has_taken_is_gone(tmp_path: Path) -> None:
    torch = tmp_path / "torch"
    block(torch / "lib" / "libtorch_global_deps.so", 600)
    module = block(torch / "_C.cpython-312-x86_64-linux-gnu.so", 600)
    block(tmp_path / "x.so", 600)
    block(tmp_path / "y.so", 400)
    opened = f"import ctypes; ctypes.CDLL({str(torch / 'lib/libtorch_global_deps.so')!r}); ctypes.CDLL({str(module)!r})"
    facts = assert_as_the_loader_says(tmp_path, opened)
    (crowded,) = [resolution.crowded for resolution in facts.resolutions if resolution.crowded]
    assert (crowded.required_by, crowded.needed) == (str(tmp_path / "x.so"), 600)
    assert crowded.total - crowded.free >= 1200
    assert [
        (f.check, f.severity, f.object) for f in check_environment(tmp_path).findings if f.check == "static-tls"
    ] == [("static-tls", "error", "x.so")]


def test_the_remedy_is_one(tmp_path: Path) -> None:
    path = block(tmp_path / "x.so", 3000)
    (finding,) = check_environment(tmp_path).findings
    assert (finding.check, finding.severity) == ("static-tls", "warning")
    assert "3000 bytes" in finding.message
    words = finding.remedy.replace(";", " ").replace(",", " ").split()
    (tunable,) = [word for word in words if word.startswith("GLIBC_TUNABLES=")]
    for variables, expected in (
        ({}, b"cannot allocate memory in static TLS block"),
        (dict([tunable.split("=", 1)]), b""),
        ({"LD_PRELOAD": str(path)}, b""),
    ):
        code = f"import ctypes; ctypes.CDLL({str(path)!r})"
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True)
        assert (done.returncode != 0) == bool(expected) and expected in done.stderr


def test_an_alignment_that_no_tunable_grants(tmp_path: Path) -> None:
    path = block(tmp_path / "x.so", 8, alignment=128)
    (finding,) = check_environment(tmp_path).findings
    assert (finding.check, finding.severity) == ("static-tls", "warning")
    assert finding.message.endswith("static TLS, aligned as glibc grants it at the start alone")
    assert "GLIBC_TUNABLES" not in finding.remedy
    code = f"import ctypes; ctypes.CDLL({str(path)!r})"
    tunable = {"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=8192"}
    for variables, works in ((tunable, False), ({"LD_PRELOAD": str(path)}, True)):
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True)
        assert (done.returncode == 0) == works


def test_blocks_as_pyelftools_sees_them(tmp_path: Path) -> None:
    paths = [block(tmp_path / f"x{size}.so", size, alignment) for size, alignment in ((8, 1), (100, 32), (64, 64))]
    for path in [*paths, Path("/lib/x86_64-linux-gnu/libc.so.6"), Path("/lib/x86_64-linux-gnu/libm.so.6")]:
        with path.open("rb") as file:
            headers = [segment.header for segment in ELFFile(file).iter_segments() if segment.header.p_type == "PT_TLS"]
        expected = [(head.p_memsz, head.p_align, head.p_vaddr % head.p_align) for head in headers] or [(0, 1, 0)]
        assert [facts_of(path).tls] == expected


def test_a_table_of_relocations_that_lies_elsewhere_is_damage(tmp_path: Path) -> None:
    path = block(tmp_path / "x.so", 8)
    data = path.read_bytes()
    with path.open("rb") as file:
        dynamic = next(s for s in ELFFile(file).iter_segments() if s.header.p_type == "PT_DYNAMIC")
        at = dynamic.header.p_offset + 16 * next(
            n for n, tag in enumerate(dynamic.iter_tags()) if tag.entry.d_tag == "DT_RELA"
        )
    path.write_bytes(data[: at + 8] + (1 << 40).to_bytes(8, "little") + data[at + 16 :])
    facts = scan(FolderSource(tmp_path))
    assert [item.reason for item in facts.unreadable] == [
        "DT_RELA: address 0x10000000000 lies in no segment of the file"
    ]

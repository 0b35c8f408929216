"""Wheelhouses, lock files and requirements: which wheels are meant."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from abi_checks.errors import SourceError, UsageError
from abi_checks.sources.index import Link, resolve
from abi_checks.sources.interface import Unreadable
from abi_checks.sources.lockfile import LockedWheel, lock_source, read_lock
from abi_checks.sources.requirement import requirement_source
from abi_checks.sources.selection import best, running_python
from abi_checks.sources.wheelhouse import wheel_source, wheelhouse_source
from tests.abi_checks.sources.server import Site, serve
from tests.abi_checks.sources.wheels import make_wheel

ELF = b"\x7fELF" + b"x" * 60
MACHINE = os.uname().machine
PYTHON = running_python()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    """An index on this machine, the only one that uv is told of, and an empty cache of uv's."""
    for name in [name for name in os.environ if name.startswith("UV_") or "proxy" in name.lower()]:
        monkeypatch.delenv(name)
    with serve() as site:
        monkeypatch.setenv("UV_NO_CONFIG", "1")
        monkeypatch.setenv("UV_DEFAULT_INDEX", site.url + "/simple/")
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
        yield site


def publish(site: Site, *wheels: Path) -> None:
    """Put wheels on the index, in the simple API's HTML (PEP 503)."""
    for name in {wheel.name.partition("-")[0] for wheel in wheels}:
        links = []
        for wheel in wheels:
            if wheel.name.startswith(name + "-"):
                data = wheel.read_bytes()
                site.files[f"/files/{wheel.name}"] = data
                links.append(
                    f'<a href="/files/{wheel.name}#sha256={hashlib.sha256(data).hexdigest()}">{wheel.name}</a>'
                )
        site.files[f"/simple/{name}/"] = "".join(links).encode()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names(source: object) -> list[str]:
    return [wheel.filename for wheel in source.wheels]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        (["a-1-py3-none-any.whl"], 0),
        (["a-1-py3-none-any.whl", f"a-1-cp312-cp312-manylinux_2_17_{MACHINE}.whl"], 1),
        ([f"a-1-cp312-cp312-manylinux_2_17_{MACHINE}.whl", f"a-1-3-cp312-cp312-manylinux_2_17_{MACHINE}.whl"], 1),
        ([f"a-1-cp310-abi3-manylinux_2_17_{MACHINE}.whl", f"a-1-cp313-cp313-manylinux_2_17_{MACHINE}.whl"], 0),
        ([f"a-1-cp312-cp312-manylinux_2_59_{MACHINE}.whl"], 0),
        ([f"a-1-cp311-cp311-manylinux_2_17_{MACHINE}.whl"], None),
        (["a-1-cp312-cp312-manylinux_2_17_riscv64.whl"], None),
        (["a-1-cp312-cp312-win_amd64.whl"], None),
        (["nonsense.whl"], None),
        ([], None),
    ],
)
def test_the_wheel_that_an_installer_would_take(offers: list[str], chosen: int | None) -> None:
    assert best(offers, (3, 12)) == (None if chosen is None else offers[chosen])


def test_a_wheelhouse_becomes_the_environment_of_its_wheels(tmp_path: Path) -> None:
    make_wheel(tmp_path, {"a.so": ELF}, name="alpha")
    make_wheel(tmp_path, {"b.so": ELF}, name="beta", tag=f"cp311-cp311-manylinux_2_17_{MACHINE}")
    make_wheel(tmp_path, {"b.so": ELF}, name="beta", tag=f"cp312-cp312-manylinux_2_17_{MACHINE}")
    source = wheelhouse_source(tmp_path, (3, 12))
    assert names(source) == ["alpha-1.0-py3-none-any.whl", f"beta-1.0-cp312-cp312-manylinux_2_17_{MACHINE}.whl"]
    assert source.complete
    assert [item.path for item in source.objects()] == [
        "lib/python3.12/site-packages/a.so",
        "lib/python3.12/site-packages/b.so",
    ]


def test_the_python_is_the_one_that_the_wheels_fit(tmp_path: Path) -> None:
    other = (3, 11) if PYTHON != (3, 11) else (3, 12)
    tag = f"cp3{other[1]}-cp3{other[1]}-manylinux_2_17_{MACHINE}"
    make_wheel(tmp_path, {"b.so": ELF}, name="pure")
    path = make_wheel(tmp_path, {"a.so": ELF}, tag=tag)
    assert wheelhouse_source(tmp_path).python == other
    assert wheel_source(path).python == other
    assert wheel_source(tmp_path / "pure-1.0-py3-none-any.whl").python == PYTHON


def test_what_a_wheelhouse_cannot_give_is_reported(tmp_path: Path) -> None:
    make_wheel(tmp_path, {"a.so": ELF}, name="alpha")
    make_wheel(tmp_path, {"a.so": ELF}, name="windows", tag="cp312-cp312-win_amd64")
    (tmp_path / "bad-1.0-py3-none-any.whl").write_bytes(b"PK")
    (tmp_path / "misnamed.whl").write_bytes(b"PK")
    found = {
        item.path: item.reason
        for item in wheelhouse_source(tmp_path, (3, 12)).objects()
        if isinstance(item, Unreadable)
    }
    assert set(found) == {"windows-1.0-cp312-cp312-win_amd64.whl", "bad-1.0-py3-none-any.whl", "misnamed.whl"}
    assert "fits Python 3.12" in found["windows-1.0-cp312-cp312-win_amd64.whl"]
    assert "not a whole zip archive" in found["bad-1.0-py3-none-any.whl"]


def test_two_versions_in_a_wheelhouse_are_a_usage_error(tmp_path: Path) -> None:
    make_wheel(tmp_path, {}, version="1.0")
    make_wheel(tmp_path, {}, version="2.0")
    with pytest.raises(UsageError, match=r"holds demo in the versions 1\.0 and 2\.0; keep one, or name the lock file"):
        wheelhouse_source(tmp_path)


def test_a_folder_without_wheels_is_a_source_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no wheel in this folder"):
        wheelhouse_source(tmp_path)
    with pytest.raises(SourceError, match="cannot read this folder: No such file"):
        wheelhouse_source(tmp_path / "gone")


def test_a_lock_is_read_with_its_continuations_markers_and_urls(tmp_path: Path) -> None:
    one, two, three = "1" * 64, "2" * 64, "3" * 64
    lock = tmp_path / "lock.txt"
    lock.write_text(
        "# a comment\n--index-url https://index.invalid/simple\n"
        f"Some.Name[extra]==1.0 \\\n    --hash=sha256:{one} \\\n    --hash=sha256:{two}\n    # via something\n"
        "old==1.0 ; python_version < '3.10'\n"
        f"kernel @ https://host.invalid/x/kernel-0.3%2Bcu130-cp310-abi3-linux_x86_64.whl#sha256={three}\n"
    )
    url = "https://host.invalid/x/kernel-0.3%2Bcu130-cp310-abi3-linux_x86_64.whl"
    assert read_lock(lock, (3, 12)) == [
        LockedWheel("some-name", "1.0", "", frozenset({one, two})),
        LockedWheel("kernel", "0.3+cu130", url, frozenset({three})),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a>=1\n", r"lock\.txt:1: a is not pinned"),
        ("\na==1.*\n", r"lock\.txt:2: a is not pinned"),
        ("a==1\n!!!\n", r"lock\.txt:2: not a requirement"),
        ("# nothing\n", "pins nothing"),
    ],
)
def test_a_lock_that_pins_nothing_is_a_usage_error(tmp_path: Path, text: str, problem: str) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(text)
    with pytest.raises(UsageError, match=problem):
        read_lock(lock, (3, 12))


def test_a_locks_wheels_come_from_the_wheelhouse_the_cache_and_the_index(tmp_path: Path, site: Site) -> None:
    house = tmp_path / "house"
    in_house = make_wheel(house, {"a.so": ELF}, name="alpha")
    on_index = make_wheel(tmp_path, {"b.so": ELF}, name="beta")
    by_url = make_wheel(tmp_path, {"u.so": ELF}, name="upsilon")
    publish(site, on_index, by_url)
    cached = tmp_path / "uv-cache" / "wheels-v5" / "pypi" / "gamma" / "1.0-py3-none-any"
    (cached / "gamma-1.0.dist-info").mkdir(parents=True)
    (cached / "c.so").write_bytes(ELF)
    (cached / "gamma-1.0.dist-info" / "WHEEL").write_text("Tag: py3-none-any\n")
    (cached / "gamma-1.0.dist-info" / "METADATA").write_text("Name: gamma\nVersion: 1.0\n")
    cached.with_name(cached.name + ".http").write_bytes(b"sha256" + b"c" * 64)
    lock = tmp_path / "lock.txt"
    lock.write_text(
        f"alpha==1.0 --hash=sha256:{sha256(in_house)}\nbeta==1.0 --hash=sha256:{sha256(on_index)}\n"
        f"gamma==1.0 --hash=sha256:{'c' * 64}\n"
        f"upsilon @ {site.url}/files/{by_url.name} --hash=sha256:{sha256(by_url)}\n"
    )
    source = lock_source(lock, house)
    assert {wheel.name: wheel.location for wheel in source.wheels} == {
        "alpha": str(in_house),
        "beta": f"{site.url}/files/{on_index.name}",
        "gamma": str(cached),
        "upsilon": f"{site.url}/files/{by_url.name}",
    }
    assert [Path(item.path).name for item in source.objects()] == ["a.so", "b.so", "c.so", "u.so"]
    assert source.complete
    assert not list((tmp_path / "uv-cache").rglob("*.whl"))


def test_a_cached_wheel_with_another_hash_is_not_taken(tmp_path: Path, site: Site) -> None:
    cached = tmp_path / "uv-cache" / "wheels-v5" / "pypi" / "gamma" / "1.0-py3-none-any"
    (cached / "gamma-1.0.dist-info").mkdir(parents=True)
    (cached / "gamma-1.0.dist-info" / "WHEEL").write_text("Tag: py3-none-any\n")
    (cached / "gamma-1.0.dist-info" / "METADATA").write_text("Name: gamma\nVersion: 1.0\n")
    cached.with_name(cached.name + ".http").write_bytes(b"sha256" + b"c" * 64)
    lock = tmp_path / "lock.txt"
    lock.write_text(f"gamma==1.0 --hash=sha256:{'d' * 64}\n")
    with pytest.raises(SourceError, match="gamma"):
        lock_source(lock)


def test_a_wheel_of_the_wheelhouse_with_another_hash_is_refused(tmp_path: Path, site: Site) -> None:
    make_wheel(tmp_path, {}, name="alpha")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"alpha==1.0 --hash=sha256:{'d' * 64}\n")
    with pytest.raises(
        SourceError, match=r"alpha-1\.0-py3-none-any\.whl: its sha256 is [0-9a-f]{64}, which the lock does not list"
    ):
        lock_source(lock, tmp_path)


def test_a_requirement_is_resolved_by_uv_from_the_users_index(tmp_path: Path, site: Site) -> None:
    old = make_wheel(tmp_path, {"a.so": ELF}, version="1.0")
    new = make_wheel(tmp_path, {"a.so": ELF + b"new"}, version="2.0", requires=["not-there==1.0"])
    publish(site, old, new)
    link = Link("demo", "2.0", new.name, f"{site.url}/files/{new.name}", sha256(new))
    assert resolve(["demo"], PYTHON) == [link]
    assert resolve(["demo"], PYTHON, hashes=[sha256(new)]) == [link]
    assert resolve(["demo<2"], PYTHON)[0].filename == old.name
    with pytest.raises(SourceError, match=r"demo 2\.0: the index has no wheel with one of the given hashes"):
        resolve(["demo"], PYTHON, hashes=["0" * 64])
    source = requirement_source("demo==1.0")
    assert not source.complete
    assert [Path(item.path).name for item in source.objects()] == ["a.so"]


def test_several_requirements_become_one_environment(tmp_path: Path, site: Site) -> None:
    publish(site, make_wheel(tmp_path, {"a.so": ELF}, name="alpha"), make_wheel(tmp_path, {"b.so": ELF}, name="beta"))
    assert [distribution.label for distribution in requirement_source("alpha", ["beta"]).distributions()] == [
        "alpha==1.0",
        "beta==1.0",
    ]


def test_what_no_index_has_is_told_in_uvs_words(site: Site) -> None:
    with pytest.raises(
        SourceError, match=r"(?s)uv could not resolve nothing-like-it==1:\n.*nothing-like-it was not found"
    ):
        requirement_source("nothing-like-it==1")


def test_what_is_no_requirement_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'a=1' is neither a file nor a requirement"):
        requirement_source("a=1")

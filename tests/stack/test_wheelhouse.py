"""Wheelhouses: what is in them, parts and what can happen to parts, and a build from one without any network."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from abi_checks.errors import SourceError, UserError
from stack import download, transfer, wheelhouse
from stack.artifacts import Artifact, index_artifacts
from stack.cli import main
from stack.download import fetch_all
from stack.parts import write_parts
from stack.prefix import StackFolder
from tests.stack.tiny import PYTHON, TinyStack, make_tiny_stack, make_wheel, sha256

Capture = pytest.CaptureFixture[str]
PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyStack:
    """A tiny stack whose "index" is a folder, as are its host of direct wheels; this project's wheel is a stand-in."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    tiny = make_tiny_stack(tmp_path, helper_files={"helper/data.bin": os.urandom(5 << 20)})
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tiny.wheelhouse))
    tool = make_wheel(tmp_path / "tools", "packaging", "26.0", {"packaging.py": ""})
    lock = tmp_path / "tool.txt"
    lock.write_text(f"packaging==26.0 --hash=sha256:{sha256(tool)}\n")
    shutil.copy(tool, tiny.wheelhouse)
    monkeypatch.setattr(wheelhouse, "TOOL_LOCK", lock)
    monkeypatch.setattr(
        wheelhouse, "build_project", lambda folder: make_wheel(folder, "cu130_stack", "0.0", {"cu130.py": ""})
    )
    return tiny


def arguments(tiny: TinyStack, out: Path, *more: str) -> list[str]:
    mirror = f"https://wheelhouse.invalid={tiny.wheelhouse.as_uri()}"
    where = ["--out", str(out), "--python", PYTHON, "--mirror", mirror]
    return ["wheelhouse", "--stack", str(tiny.definition), *where, *more]


LOCK = f"tiny-py{PYTHON.replace('.', '')}.txt"
WHEELS = ["helper-1.0-py3-none-any.whl", "torch-2.9.1+cu130-py3-none-any.whl"]
CONTENT = sorted(
    [
        *("INSTALL", "SHA256SUMS", "join_and_verify.py", "tiny.toml", LOCK, *WHEELS),
        *("tools/cu130_stack-0.0-py3-none-any.whl", "tools/packaging-26.0-py3-none-any.whl"),
    ]
)


def content(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def join(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the script that travels with a wheelhouse, as the target would: with nothing of this project."""
    command = [sys.executable, "-I", str(folder / "join_and_verify.py"), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder.parent)


def test_a_wheelhouse_holds_everything_and_verifies_itself(tiny: TinyStack, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert main(arguments(tiny, out)) == 0
    assert content(out) == CONTENT
    assert f"wheelhouse of tiny for Python {PYTHON}: {out}" in capsys.readouterr().out
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=out, check=True, capture_output=True)
    answer = join(out)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == f"{out}: {len(CONTENT) - 1} files, as they were sent\n"
    assert "\n  python3 join_and_verify.py\n" in (out / "INSTALL").read_text()


def test_a_second_run_fetches_nothing_and_repairs_what_is_damaged(
    tiny: TinyStack, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "out"
    assert main(arguments(tiny, out)) == 0
    capsys.readouterr()
    assert main(arguments(tiny, out)) == 0
    assert "0 files fetched, 0.00 GiB" in capsys.readouterr().out
    (out / WHEELS[0]).write_bytes(b"damaged")
    assert main(arguments(tiny, out)) == 0
    assert "1 files fetched" in capsys.readouterr().out
    assert sha256(out / WHEELS[0]) == sha256(tiny.wheelhouse / WHEELS[0])


def test_wheels_that_the_target_has_are_left_out(tiny: TinyStack, tmp_path: Path) -> None:
    listed = tmp_path / "there.txt"
    listed.write_text(f"# what lies on the target\n{sha256(tiny.wheelhouse / WHEELS[0])}  {WHEELS[0]}\n")
    out = tmp_path / "out"
    assert main(arguments(tiny, out, "--without", str(listed))) == 0
    assert content(out) == sorted(set(CONTENT) - {WHEELS[0]} | {"WITHOUT"})
    assert (out / "WITHOUT").read_text().split() == [sha256(tiny.wheelhouse / WHEELS[0]), WHEELS[0]]
    assert join(out).returncode == 0
    (out / WHEELS[0]).write_bytes(b"another file of that name")
    assert f"{WHEELS[0]}: is corrupt" in join(out).stderr
    shutil.copy(tiny.wheelhouse / WHEELS[0], out)
    assert join(out).returncode == 0


def test_a_wheel_of_that_name_with_another_hash_is_sent_all_the_same(tiny: TinyStack, tmp_path: Path) -> None:
    listed = tmp_path / "there.txt"
    listed.write_text(f"{'0' * 64}  {WHEELS[0]}\n")
    assert main(arguments(tiny, tmp_path / "out", "--without", str(listed))) == 0
    assert content(tmp_path / "out") == CONTENT


def test_a_list_that_is_none_is_refused(tiny: TinyStack, tmp_path: Path, capsys: Capture) -> None:
    listed = tmp_path / "there.txt"
    listed.write_text("helper 1.0\n")
    assert main(arguments(tiny, tmp_path / "out", "--without", str(listed))) == 2
    assert "there.txt:1: 'helper 1.0' is neither" in capsys.readouterr().err
    assert main(arguments(tiny, tmp_path / "out", "--without", str(tmp_path / "none.txt"))) == 3


def test_what_does_not_belong_there_is_named(tiny: TinyStack, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "other-1.0-py3-none-any.whl").write_bytes(b"")
    assert main(arguments(tiny, out)) == 1
    assert "other-1.0-py3-none-any.whl" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_named(tiny: TinyStack, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("")
    assert main(arguments(tiny, tmp_path / "file" / "out")) == 3
    assert f"{tmp_path}/file/out" in capsys.readouterr().err


def test_no_room_is_said_before_anything_is_fetched(
    tiny: TinyStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    item = Artifact("big", "1", "big.whl", "https://host.invalid/big.whl", 3 << 30, "0")
    with pytest.raises(UserError, match=r"0\.0 GiB are free and the wheelhouse needs 6\.0 GiB, since wheels and parts"):
        wheelhouse.check_room(tmp_path / "out", tmp_path / "out", [item], twice=True)


@pytest.fixture
def parts(tiny: TinyStack, tmp_path: Path) -> Path:
    """The tiny wheelhouse in six parts of 1 MiB."""
    out = tmp_path / "parts"
    assert main(arguments(tiny, out, "--split", "1M")) == 0
    assert content(out) == [
        *("INSTALL", "join_and_verify.py", "parts.json"),
        *(f"wheelhouse.part{number:04d}" for number in range(1, 7)),
    ]
    return out


def test_parts_are_joined_to_the_same_wheelhouse(parts: Path, tmp_path: Path) -> None:
    assert {path.stat().st_size for path in sorted(parts.glob("*.part*"))[:-1]} == {1 << 20}
    answer = join(parts, str(tmp_path / "joined"))
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.splitlines()[0] == "6 parts are as they were sent"
    assert "\n  python3 join_and_verify.py wheelhouse\n  cd wheelhouse\n" in (parts / "INSTALL").read_text()
    assert content(tmp_path / "joined") == CONTENT
    again = join(parts, str(tmp_path / "joined"))
    assert again.returncode == 3 and "exists already" in again.stderr


def swap(parts: Path) -> None:
    second, third = parts / "wheelhouse.part0002", parts / "wheelhouse.part0003"
    content = second.read_bytes()
    second.write_bytes(third.read_bytes())
    third.write_bytes(content)


def corrupt(parts: Path) -> None:
    path = parts / "wheelhouse.part0003"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)


def link_out(parts: Path) -> None:
    path = parts / "wheelhouse.part0003"
    path.rename(parts.parent / "elsewhere")
    path.symlink_to(parts.parent / "elsewhere")


def rename_out(parts: Path) -> None:
    document = json.loads((parts / "parts.json").read_text())
    document["parts"][2]["name"] = "../elsewhere"
    (parts / "parts.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "messages"),
    [
        (lambda parts: (parts / "wheelhouse.part0003").unlink(), ["wheelhouse.part0003: is missing"]),
        (
            lambda parts: os.truncate(parts / "wheelhouse.part0003", 1000),
            ["wheelhouse.part0003: is truncated, 1000 of 1048576 bytes"],
        ),
        (
            swap,
            [
                "wheelhouse.part0002: has the content of wheelhouse.part0003 (swapped)",
                "wheelhouse.part0003: has the content of wheelhouse.part0002 (swapped)",
            ],
        ),
        (corrupt, ["wheelhouse.part0003: is corrupt (1048576 bytes, another sha256 than was sent)"]),
        (link_out, ["'wheelhouse.part0003' is not the name of a file of this folder"]),
        (rename_out, ["'../elsewhere' is not the name of a file of this folder"]),
        (lambda parts: (parts / "parts.json").write_text("{}"), ["parts.json: cannot be read"]),
    ],
)
def test_damaged_parts_are_named_and_nothing_is_unpacked(
    parts: Path, tmp_path: Path, damage: Callable[[Path], None], messages: list[str]
) -> None:
    damage(parts)
    answer = join(parts, str(tmp_path / "joined"))
    assert answer.returncode == 3 and answer.stdout == ""
    assert all(message in answer.stderr for message in messages) and "Traceback" not in answer.stderr
    assert not (tmp_path / "joined").exists() and not list(tmp_path.glob(".joined*"))


def one_part(folder: Path, member: tarfile.TarInfo) -> list[Path]:
    path = folder / "wheelhouse.part0001"
    with tarfile.open(path, "w") as archive:
        archive.addfile(member, io.BytesIO(b"x" * member.size))
    return [path]


def tar_member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, target, 4 if kind == tarfile.REGTYPE else 0
    return member


@pytest.mark.parametrize(
    "member",
    [
        tar_member("../outside.whl"),
        tar_member("/outside.whl"),
        tar_member("tools/../../outside.whl"),
        tar_member("a/b/c.whl"),
        tar_member(".hidden"),
        tar_member("link.whl", tarfile.SYMTYPE, "/etc/passwd"),
        tar_member("link.whl", tarfile.LNKTYPE, "../outside"),
        tar_member("device", tarfile.CHRTYPE),
    ],
)
def test_an_entry_that_would_leave_the_folder_is_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    with pytest.raises(transfer.TransferError, match="refused, not a plain file inside the wheelhouse"):
        transfer.unpack(one_part(tmp_path, member), tmp_path / "joined")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wheelhouse.part0001"]


def test_a_full_disk_while_unpacking_leaves_nothing(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: object, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(transfer.TransferError, match=r"No space left on device\); nothing of it was left"):
        transfer.unpack(transfer.check_parts(parts), tmp_path / "joined")
    assert not (tmp_path / "joined").exists() and not list(tmp_path.glob(".joined*"))


def test_a_full_disk_while_splitting_leaves_no_part(tmp_path: Path) -> None:
    folder, out = tmp_path / "wheels", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    (folder / "a.whl").write_bytes(b"x" * 3000)

    def full(name: str) -> None:
        if name.endswith("3"):
            raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="the disk is full; no part was left"):
        write_parts(folder, out, 1000, full)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("text", ["60", "60MB", "0M", "12K", "-1M", "x"])
def test_sizes_that_are_none(tiny: TinyStack, tmp_path: Path, capsys: Capture, text: str) -> None:
    assert main(arguments(tiny, tmp_path / "out", f"--split={text}")) == 2
    assert "--split must be a size of 1M or more" in capsys.readouterr().err


def test_a_wheel_that_is_a_link_out_of_the_wheelhouse_is_refused(
    tiny: TinyStack, tmp_path: Path, capsys: Capture
) -> None:
    wheel = tiny.wheelhouse / WHEELS[0]
    wheel.rename(tmp_path / WHEELS[0])
    wheel.symlink_to(tmp_path / WHEELS[0])
    assert main(tiny.arguments(tmp_path / "prefix")) == 3
    assert f"{WHEELS[0]}: refused, it is a symbolic link that leads out of the wheelhouse" in capsys.readouterr().err


# --- the real steps of INSTALL, in a network namespace with no route ---


def without_network() -> list[str]:
    """A command that runs another with no network at all, or skips the test where that is not allowed."""
    command = ["unshare", "--net", "--map-root-user"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this host does not let a process have a network namespace of its own")
    return command


def test_without_network_the_joined_wheelhouse_builds(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = without_network()
    assert join(parts, str(tmp_path / "joined")).returncode == 0
    for name in ("UV_NO_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name)
    # A cache that never saw these wheels, and a check that there is no way out.
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cold"))
    routes = subprocess.run([*alone, "cat", "/proc/net/route"], capture_output=True, text=True, check=True)
    assert len(routes.stdout.splitlines()) <= 1
    command = [sys.executable, "-m", "stack", "build", "--stack", str(tmp_path / "joined" / "tiny.toml")]
    command += ["--python", PYTHON, "--wheelhouse", str(tmp_path / "joined"), "--prefix", str(tmp_path / "prefix")]
    built = subprocess.run([*alone, *command], cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    assert StackFolder(tmp_path / "prefix" / "tiny").current is not None


def test_without_network_a_missing_wheel_is_named(tiny: TinyStack, tmp_path: Path) -> None:
    alone = without_network()
    (tiny.wheelhouse / WHEELS[1]).unlink()
    environment = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cold")}
    command = [sys.executable, "-m", "stack", *tiny.arguments(tmp_path / "prefix")]
    built = subprocess.run([*alone, *command], cwd=PROJECT, capture_output=True, text=True, env=environment, timeout=60)
    assert built.returncode == 3
    assert WHEELS[1] in built.stderr and "no wheelhouse with it was given" in built.stderr


# --- fetching over HTTP ---


class Breaking(SimpleHTTPRequestHandler):
    """Sends a file, breaking off the first answer after 3 MB, and honours the Range of the next."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        data = Path(self.directory, self.path.lstrip("/")).read_bytes()
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.asked.append(self.headers.get("Range", ""))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start:] if start else data[: 3 << 20])
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    Breaking.asked = []
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "big.whl").write_bytes(bytes(range(256)) * (5 << 12))
    with ThreadingHTTPServer(("127.0.0.1", 0), lambda *rest: Breaking(*rest, directory=str(folder))) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()


def served(server: str, digest: str, name: str = "big.whl") -> Artifact:
    return Artifact("big", "1", name, f"{server}/{name}", None, digest)


BIG = hashlib.sha256(bytes(range(256)) * (5 << 12)).hexdigest()


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(server: str, tmp_path: Path) -> None:
    fetched = fetch_all([(served(server, BIG), tmp_path / "out")], lambda text: None)
    assert (fetched.files, fetched.bytes, fetched.kept) == (1, 5 << 20, 0)
    assert sha256(tmp_path / "out" / "big.whl") == BIG
    assert Breaking.asked == ["", f"bytes={3 << 20}-"]


def test_a_fetched_file_with_another_hash_is_refused(server: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"locked: sha256 {'0' * 64}\n  found:  sha256 {BIG} at {server}/big.whl"):
        fetch_all([(served(server, "0" * 64), tmp_path / "out")], lambda text: None)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_full_disk_while_fetching_keeps_what_is_complete(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(item: Artifact) -> Iterator[bytes]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_chunks", full)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "complete.whl").write_bytes(b"")
    with pytest.raises(UserError, match=r"the disk is full .* while big\.whl was written\. The complete files stay"):
        fetch_all([(served(server, BIG), tmp_path / "out")], lambda text: None)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["complete.whl"]


# --- which of the index's files ---


def pylock(*filenames: str) -> tuple[str, dict[str, list[str]]]:
    rows = [
        f'{{ url = "https://host.invalid/{name}", size = 9, hashes = {{ sha256 = "{number}" }} }}'
        for number, name in enumerate(filenames)
    ]
    text = f'[[packages]]\nname = "x"\nversion = "1"\nwheels = [{", ".join(rows)}]\n'
    return text, {"x": [str(number) for number in range(len(filenames))]}


def test_the_wheel_for_the_oldest_accepted_glibc_is_taken() -> None:
    names = (
        "x-1-cp312-cp312-manylinux_2_35_x86_64.whl",
        "x-1-cp312-cp312-manylinux_2_28_x86_64.whl",
        "x-1-cp312-cp312-manylinux2014_x86_64.whl",
        "x-1-cp312-cp312-manylinux_2_28_aarch64.whl",
        "x-1-py3-none-any.whl",
    )
    (chosen,) = index_artifacts(*pylock(*names), "3.12", "2.34", "x86_64")
    assert (chosen.filename, chosen.sha256, chosen.size) == (names[1], "1", 9)
    (chosen,) = index_artifacts(*pylock(*names), "3.12", "2.17", "x86_64")
    assert chosen.filename == names[2]
    (chosen,) = index_artifacts(*pylock(*names), "3.11", "2.34", "x86_64")
    assert chosen.filename == names[4]


def test_a_file_without_a_locked_hash_is_no_choice() -> None:
    text, hashes = pylock("x-1-py3-none-any.whl")
    with pytest.raises(SourceError, match=r"x 1: the index offers no wheel with a locked hash for Python 3\.12"):
        index_artifacts(text, {"x": ["f"]}, "3.12", "2.34", "x86_64")
    assert (
        index_artifacts(text, hashes, "3.12", "2.34", "x86_64")[0].location
        == "https://host.invalid/x-1-py3-none-any.whl"
    )

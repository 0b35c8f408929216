"""Files read over ranges of HTTP, from a server on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from abi_checks import remote
from abi_checks.errors import SourceError
from abi_checks.remote import RemoteFile
from tests.abi_checks.sources.server import Site, serve

DATA = os.urandom(3_000_000)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(remote, "STEP", 1_000_000)
    monkeypatch.setattr(remote, "RETRY_WAIT", 0.0)
    with serve() as site:
        site.files["/w.whl"] = DATA
        yield site


def test_small_reads_near_the_end_share_one_request(site: Site) -> None:
    file = RemoteFile(site.url + "/w.whl")
    assert file.size == len(DATA)
    assert file.read(len(DATA) - 22, 22) == DATA[-22:]
    assert file.read(len(DATA) - 60_000, 500) == DATA[-60_000:-59_500]
    assert file.read(len(DATA) - 5, 100) == DATA[-5:]
    assert file.read(len(DATA), 1) == b""
    assert file.read(-1, 1) == b""
    assert [asked for _, asked in site.requests] == ["bytes=0-0", f"bytes={len(DATA) - remote.WINDOW}-{len(DATA) - 1}"]
    assert file.fetched == 1 + remote.WINDOW


def test_a_stream_asks_for_each_byte_once(site: Site) -> None:
    file = RemoteFile(site.url + "/w.whl")
    assert b"".join(file.chunks(500, 2_400_000)) == DATA[500:2_400_000]
    assert file.fetched == 1 + 2_400_000 - 500
    assert [asked for _, asked in site.requests[1:]] == [
        "bytes=500-1000499",
        "bytes=1000500-2000499",
        "bytes=2000500-2399999",
    ]
    assert b"".join(file.chunks(10, 10)) == b""
    assert b"".join(file.chunks(len(DATA) + 5, len(DATA) + 50)) == b""


def test_an_answer_cut_short_is_asked_for_again(site: Site) -> None:
    file = RemoteFile(site.url + "/w.whl")
    site.cut_short = 2
    assert file.read(100, 1000) == DATA[100:1100]


def test_answers_that_stay_short_are_an_error(site: Site) -> None:
    file = RemoteFile(site.url + "/w.whl")
    site.cut_short = 100
    with pytest.raises(SourceError, match=r"/w\.whl: cannot be read: .*download the file"):
        file.read(100, 1000)


def test_a_server_without_ranges_is_not_made_to_send_everything(site: Site) -> None:
    site.ranges = False
    with pytest.raises(SourceError, match="sends whole files only, no ranges; download the file"):
        RemoteFile(site.url + "/w.whl")


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_names_its_status(site: Site, status: int) -> None:
    site.status = status
    with pytest.raises(SourceError, match=f"HTTP status {status}"):
        RemoteFile(site.url + "/w.whl")
    assert len(site.requests) == 1


def test_a_server_that_fails_is_asked_again_and_then_named(site: Site) -> None:
    site.status = 503
    with pytest.raises(SourceError, match="HTTP status 503"):
        RemoteFile(site.url + "/w.whl")
    assert len(site.requests) == 4


def test_a_file_replaced_in_between_is_told(site: Site) -> None:
    file = RemoteFile(site.url + "/w.whl")
    site.etag = '"2"'
    with pytest.raises(SourceError, match="the file was replaced while it was being read; try again"):
        file.read(100, 1000)


def test_a_host_that_is_not_there_is_named(site: Site) -> None:
    with pytest.raises(SourceError, match=r"^http://127\.0\.0\.1:1/w\.whl: cannot be read: .*refused"):
        RemoteFile("http://127.0.0.1:1/w.whl")


def test_credentials_are_sent_and_not_shown(site: Site) -> None:
    url = site.url.replace("http://", "http://user:p%40ss@") + "/w.whl"
    assert RemoteFile(url).url == site.url + "/w.whl"
    assert site.credentials == ["Basic dXNlcjpwQHNz"]
    site.status = 401
    with pytest.raises(SourceError) as caught:
        RemoteFile(url)
    assert "p%40ss" not in str(caught.value)
    assert "p@ss" not in str(caught.value)


def test_a_stream_starts_with_what_was_fetched_before(site: Site) -> None:
    file = RemoteFile(site.url + "/w.whl")
    assert file.read(1000, 64) == DATA[1000:1064]
    assert b"".join(file.chunks(1000, 900_000)) == DATA[1000:900_000]
    assert b"".join(file.chunks(1000, 1500)) == DATA[1000:1500]
    assert file.fetched == 1 + 899_000

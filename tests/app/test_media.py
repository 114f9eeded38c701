"""Media URLs: every legal spelling of the same bytes gives the same bytes; everything else is a short 4xx."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from app.media import SLICE_CHARS, MediaPolicy, decode_base64, read_base64, read_url
from runner.errors import RequestError
from runner.requests import FrameList, InlineBytes, StoredFile

CLIP = bytes(range(256)) * 3 + b"\xfb\xff"  # has + and / in base64, and needs padding
B64 = base64.b64encode(CLIP).decode()
POLICY = MediaPolicy(max_bytes=10_000, max_frames=4)


def refuse(url: str, policy: MediaPolicy = POLICY) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_url(url, policy, param="messages[0].content[0].video_url.url")
    assert len(caught.value.message) < 300
    assert B64[:20] not in caught.value.message
    assert caught.value.param is not None
    return caught.value


@pytest.mark.parametrize(
    "url",
    [
        f"data:video/mp4;base64,{B64}",
        f"DATA:video/mp4;base64,{B64}",
        f"Data:VIDEO/MP4;BASE64,{B64}",
        f"data:video/mp4;codecs=avc1;base64,{B64}",
        f"data:;base64,{B64}",
        f"data:image/png;base64,{B64}",
        f"data:video/mp4; base64,{B64}",
        "data:video/mp4;base64," + base64.urlsafe_b64encode(CLIP).decode(),
        "data:video/mp4;base64," + base64.encodebytes(CLIP).decode(),
        "data:video/mp4;base64," + B64.rstrip("="),
        "data:video/mp4;base64," + B64.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
    ],
)
def test_spellings_of_one_clip(url: str) -> None:
    """Case, parameters, missing type, wrong type, URL-safe, wrapped, unpadded and percent-encoded: the same bytes."""
    assert read_url(url, POLICY, param="url") == InlineBytes(data=CLIP)


@pytest.mark.parametrize(
    "url",
    [
        f"data:video/mp4,{B64}",
        f"data:video/mp4;base64{B64}",
        "data:video/mp4;base64,",
        "data:video/mp4;base64,====",
        f"data:video/mp4;base64,!!!!{B64}",
        f"data:video/mp4;base64,{B64[:40]}!{B64[40:]}",
        f"data:video/mp4;base64,{B64[:40]}={B64[40:]}",
        f"data:video/mp4;base64,{B64[:41]}",
        f"data:video/mp4;base64,{B64}é",
        f"data:video/mp4;base64,{B64}\0",
        "data:video/mp4;base64,%FF",
        "data:",
        "",
    ],
)
def test_bad_data_urls_are_400(url: str) -> None:
    """A bad character is an error, never skipped, and the payload is never repeated."""
    assert refuse(url).kind == "invalid"


@pytest.mark.parametrize(
    "url",
    [
        "/etc/passwd",
        "ftp://127.0.0.1/x",
        "gopher://127.0.0.1/x",
        "concat:/etc/passwd|/etc/passwd",
        "subfile,,start,0,end,9,,:/etc/passwd",
        "rtsp://127.0.0.1/x",
        "http://127.0.0.1:9/v.mp4",
        "https://example.com/v.mp4",
        "HTTP://[::1]/v.mp4",
        "file:///etc/passwd",
        "file-id://file-1",
        "\n data:video/mp4,",
    ],
)
def test_other_urls_are_400_and_name_no_address(url: str) -> None:
    error = refuse(url)
    assert error.kind == "invalid"
    assert "passwd" not in error.message
    assert "127.0.0.1" not in error.message


def test_frame_list() -> None:
    """Pictures are one clip, one a second unless the part says otherwise."""
    frame = base64.b64encode(b"jpeg").decode()
    url = f"data:video/jpeg;base64,{frame},{frame}"
    assert read_url(url, POLICY, param="url") == FrameList(frames=(b"jpeg", b"jpeg"), fps=1.0)
    assert read_url(url, POLICY, param="url", fps=4.0) == FrameList(frames=(b"jpeg", b"jpeg"), fps=4.0)


def test_frame_list_limits() -> None:
    """The number of pictures is checked before they are decoded, their bytes before they are kept."""
    assert refuse("data:video/jpeg;base64," + ",".join(["AAAA"] * 5)).kind == "too_large"
    assert refuse("data:video/jpeg;base64," + ",".join(["A" * 8000] * 2)).kind == "too_large"
    assert refuse("data:video/jpeg;base64,AAAA,,AAAA").kind == "invalid"


def test_bytes_limit_is_checked_before_decoding() -> None:
    assert refuse("data:video/mp4;base64," + "A" * 14_000).kind == "too_large"


@pytest.mark.parametrize("extra", [0, 1, 2, 3, 5])
def test_long_payloads_are_decoded_in_slices(extra: int) -> None:
    """Cutting the work into slices does not change the bytes."""
    data = os.urandom(SLICE_CHARS // 4 * 3 + extra)
    assert decode_base64(base64.b64encode(data).decode(), 1 << 30, param="url") == data


def test_bare_base64_and_data_url_are_both_taken_for_data() -> None:
    assert read_base64(B64, POLICY, param="data") == read_base64(f"data:video/mp4;base64,{B64}", POLICY, param="data")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "clip 1.mp4").write_bytes(b"clip")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "media-evil").mkdir()
    (tmp_path / "media-evil" / "x").write_text("x")
    (tmp_path / "media" / "link").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "media" / "inner").symlink_to(tmp_path / "media" / "clip 1.mp4")
    (tmp_path / "media" / "loop").symlink_to(tmp_path / "media" / "loop")
    os.mkfifo(tmp_path / "media" / "pipe")
    return tmp_path / "media"


def test_file_url_under_the_allowed_folder(folder: Path) -> None:
    policy = MediaPolicy(max_bytes=100, max_frames=1, local_folder=folder)
    path = str(folder / "clip 1.mp4")
    for url in (f"file://{folder}/clip%201.mp4", f"FILE://localhost{folder}/clip%201.mp4", f"file://{folder}/inner"):
        assert read_url(url, policy, param="url") == StoredFile(path=path)


@pytest.mark.parametrize(
    "tail",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/link",
        "/loop",
        "/pipe",
        "/",
        "/missing.mp4",
        "/clip%201.mp4%00.txt",
        "/clip%25201.mp4",
        "/%FF",
        "-evil/x",
        "/clip%201.mp4?x=1",
    ],
)
def test_file_urls_never_leave_the_folder(folder: Path, tail: str) -> None:
    """One message for every reason, so that it cannot be used to ask which files exist."""
    policy = MediaPolicy(max_bytes=100, max_frames=1, local_folder=folder)
    error = refuse(f"file://{folder}{tail}", policy)
    assert error.code == "file_refused"
    assert str(folder) not in error.message


@pytest.mark.parametrize(
    "url", ["file://other.host/etc/passwd", "file:////etc/passwd", "file:etc/passwd", "file://[/x"]
)
def test_file_urls_of_other_hosts_are_refused(folder: Path, url: str) -> None:
    assert refuse(url, MediaPolicy(max_bytes=100, max_frames=1, local_folder=folder)).code == "file_refused"


def test_file_url_has_the_same_size_limit(folder: Path) -> None:
    policy = MediaPolicy(max_bytes=3, max_frames=1, local_folder=folder)
    assert refuse(f"file://{folder}/clip%201.mp4", policy).kind == "too_large"

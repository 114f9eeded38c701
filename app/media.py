"""Owns the reading of media URLs: data: in every legal spelling, file: under one folder, the rest refused by name.

Knows nothing of what is in the bytes: the declared type is never trusted, vision looks at the content. http(s): and
file-id: URLs take waiting, so they have been gathered before (app/gather.py) and are only looked up here.

A data URL's scheme, type and `;base64` may be in any case, with parameters or without a type. The payload may be
standard or URL-safe base64, wrapped in lines, percent-encoded, and without its padding; a character outside the
alphabet is an error, never skipped. `data:video/jpeg;base64,<frame>,<frame>` is a list of encoded pictures.
"""

from __future__ import annotations

import binascii
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from runner.errors import RequestError
from runner.requests import FrameList, InlineBytes, MediaSource, StoredFile

FRAME_LIST_TYPE = "video/jpeg"
SLICE_CHARS = 4 << 20  # decoded a slice at a time, so that other threads get the interpreter in between
MAX_SCHEME_CHARS = 16
FILE_ID_SCHEME = "file-id://"


@dataclass(frozen=True, kw_only=True)
class MediaPolicy:
    """What may come in, and how much of it."""

    max_bytes: int
    max_frames: int
    local_folder: Path | None = None


Ready = Mapping[str, StoredFile]  # what URLs were gathered as


def read_scheme(url: str) -> str:
    """'' when there is none, or none that we know. A file-id: URL has one spelling."""
    if url.startswith(FILE_ID_SCHEME):
        return "file-id"
    scheme, colon, _ = url[:MAX_SCHEME_CHARS].partition(":")
    scheme = scheme.lower()
    return scheme if colon and scheme in ("data", "file", "http", "https") else ""


def read_url(
    url: str, policy: MediaPolicy, *, param: str, ready: Ready | None = None, fps: float | None = None
) -> MediaSource:
    """The source a URL names. `fps` says how far apart the pictures of a frame list were taken."""
    if ready is not None and url in ready:
        return ready[url]
    match read_scheme(url):
        case "data":
            return _read_data_url(url, policy, param=param, fps=fps)
        case "file":
            return _read_file_url(url, policy, param=param)
        case "http" | "https":
            raise RequestError(
                "invalid",
                "this server fetches no URLs (it was started without --allowed-media-domains); send the bytes as a "
                "data: URL, or upload the file to /v1/files or /v1/videos/ask",
                param=param,
                code="url_fetch_disabled",
            )
        case _:
            message = "the url must begin with data:, https://, http://, file:// or file-id://file-"
            raise RequestError("invalid", message, param=param)


def read_base64(data: str, policy: MediaPolicy, *, param: str) -> MediaSource:
    """Media given as bare base64, or as a data URL where a client prefers one."""
    if data[:5].lower() == "data:":
        return _read_data_url(data, policy, param=param, fps=None)
    return InlineBytes(data=decode_base64(data, policy.max_bytes, param=param))


# ------------------------------------------------------------------------------------------------------- data: URLs


def _read_data_url(url: str, policy: MediaPolicy, *, param: str, fps: float | None) -> MediaSource:
    head, comma, payload = url.partition(",")
    if not comma:
        raise RequestError("invalid", "the data: URL has no comma between its type and its data", param=param)
    media_type, *parameters = [field.strip().lower() for field in head[len("data:") :].split(";")]
    if "base64" not in parameters[-1:]:
        raise RequestError("invalid", "the data: URL must be base64: data:video/mp4;base64,...", param=param)
    if media_type != FRAME_LIST_TYPE:
        return InlineBytes(data=decode_base64(payload, policy.max_bytes, param=param))
    count = payload.count(",") + 1
    if count > policy.max_frames:
        raise RequestError(
            "too_large", f"the frame list has {count} pictures; the limit is {policy.max_frames}", param=param
        )
    if len(payload) // 4 * 3 > policy.max_bytes:
        raise _too_many_bytes(policy.max_bytes, param)
    frames = tuple(decode_base64(frame, policy.max_bytes, param=param) for frame in payload.split(","))
    return FrameList(frames=frames, fps=1.0 if fps is None else fps)


def decode_base64(text: str, max_bytes: int, *, param: str) -> bytes:
    """Strict about characters, lenient about spelling; the payload never appears in an error."""
    if "%" in text:
        text = unquote(text)
    text = text.rstrip("= \t\r\n")
    if not text.strip():
        raise RequestError("invalid", "the base64 data is empty", param=param)
    if (len(text) - text.count("\n")) // 4 * 3 > max_bytes:
        raise _too_many_bytes(max_bytes, param)
    try:
        return b"".join(_decode_slices(text))
    except ValueError:  # binascii.Error is one, and so is the complaint about characters that are not ASCII
        raise RequestError(
            "invalid", "the base64 data holds a character outside its alphabet or is cut short", param=param
        ) from None


def _decode_slices(text: str) -> Iterator[bytes]:
    """`text` has no padding at its end; padding anywhere else is a character out of place."""
    rest = ""
    for at in range(0, len(text), SLICE_CHARS):
        piece = "".join(text[at : at + SLICE_CHARS].split())
        if "=" in piece:
            raise ValueError("padding inside")
        rest += piece.replace("-", "+").replace("_", "/")
        whole = len(rest) // 4 * 4
        yield binascii.a2b_base64(rest[:whole], strict_mode=True)
        rest = rest[whole:]
    yield binascii.a2b_base64(rest + "=" * (-len(rest) % 4), strict_mode=True)


def _too_many_bytes(max_bytes: int, param: str) -> RequestError:
    return RequestError("too_large", f"the media is larger than the limit of {max_bytes} bytes", param=param)


# ------------------------------------------------------------------------------------------------------- file: URLs


def _read_file_url(url: str, policy: MediaPolicy, *, param: str) -> MediaSource:
    if policy.local_folder is None:
        raise RequestError(
            "invalid", "file: URLs are off; start the server with --allowed-local-media-path FOLDER", param=param
        )
    path = _resolve_inside(url, policy.local_folder)
    if path is None:  # one message for every reason, so that nobody can ask which files exist
        raise RequestError(
            "invalid", "the file: URL names no regular file under the allowed folder", param=param, code="file_refused"
        )
    if path.stat().st_size > policy.max_bytes:
        raise _too_many_bytes(policy.max_bytes, param)
    return StoredFile(path=str(path))


def _resolve_inside(url: str, folder: Path) -> Path | None:
    try:
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            return None
        path = Path(unquote(parts.path, errors="strict")).resolve(strict=True)
        inside = path.is_relative_to(folder.resolve(strict=True))
        return path if inside and stat.S_ISREG(path.stat().st_mode) else None
    except (OSError, ValueError, RuntimeError):  # ValueError: NUL bytes and bad escapes; RuntimeError: symlink loops
        return None

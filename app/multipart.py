"""Owns the reading of multipart forms: text fields into memory, the file straight to disk, everything bounded.

Knows nothing of what the fields mean. A client's file name is only ever shown: it is no path, and in no message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

from app.filename import read_file_name
from app.store import MediaStore, Upload
from runner.errors import RequestError

MAX_PARTS = 64
MAX_TEXT_BYTES = 1 << 20


@dataclass(kw_only=True)
class Form:
    fields: dict[str, str] = field(default_factory=dict)
    upload: Upload | None = None
    filename: str = ""


async def read_form(
    request: Request, chunks: AsyncIterator[bytes], store: MediaStore, resources: ExitStack, *, max_file_bytes: int
) -> Form:
    """The form, its file registered with `resources` from the moment it exists."""
    reader = _FormReader(store, resources, max_file_bytes)
    try:
        parser = MultipartParser(_read_boundary(request), reader.callbacks())
        async for chunk in chunks:
            parser.write(chunk)
            await reader.store_pending()
        parser.finalize()
    except FormParserError:
        raise RequestError("invalid", "the multipart body is malformed") from None
    if not reader.is_complete:
        raise RequestError("invalid", "the multipart body ends before its closing boundary")
    if reader.form.upload is not None:
        await reader.form.upload.finish()
    return reader.form


def _read_boundary(request: Request) -> bytes:
    content_type, options = parse_options_header(request.headers.get("content-type", ""))
    if content_type.lower() != b"multipart/form-data" or not options.get(b"boundary"):
        raise RequestError("unsupported_media", "send multipart/form-data, as curl -F does")
    return options[b"boundary"]


class _FormReader:
    """The parser's callbacks. They cannot wait, so file bytes are kept until `store_pending` writes them."""

    def __init__(self, store: MediaStore, resources: ExitStack, max_file_bytes: int) -> None:
        self.form = Form()
        self.is_complete = False
        self._store = store
        self._resources = resources
        self._max_file_bytes = max_file_bytes
        self._parts = 0
        self._header_name = b""
        self._header_value = b""
        self._disposition = b""
        self._name = ""
        self._text: bytearray | None = None  # None: this part is the file
        self._pending: list[bytes] = []

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin_part,
            "on_header_field": self._add_header_name,
            "on_header_value": self._add_header_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add_data,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    async def store_pending(self) -> None:
        pending, self._pending = self._pending, []
        for data in pending:
            assert self.form.upload is not None
            await self.form.upload.write(data)

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise RequestError("too_large", f"the form has more than {MAX_PARTS} parts")
        self._disposition = b""

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name = self._header_value = b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if not self._name:
            raise RequestError("invalid", "a part of the form has no name")
        if self._name in self.form.fields or (self._name == "file" and self.form.upload is not None):
            raise RequestError("invalid", "the form gives this field twice", param=self._name[:64])
        has_file = b"filename" in options or b"filename*=" in self._disposition.lower()  # the library drops the second
        if has_file != (self._name == "file"):
            wrong = "only the part named 'file' may be a file"
            message = wrong if has_file else "'file' must be a file: -F file=@clip.mp4"
            raise RequestError("invalid", message, param=self._name[:64])
        if not has_file:
            self._text = bytearray()
            return
        self._text = None
        self.form.filename = read_file_name(self._disposition, options.get(b"filename"))
        self.form.upload = self._store.create(self._max_file_bytes)
        self._resources.callback(self.form.upload.remove)

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._text is None:
            self._pending.append(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > MAX_TEXT_BYTES:
            raise RequestError(
                "too_large", f"the field is larger than the limit of {MAX_TEXT_BYTES} bytes", param=self._name[:64]
            )

    def _end_part(self) -> None:
        if self._text is None:
            return
        try:
            self.form.fields[self._name] = self._text.decode()
        except UnicodeDecodeError:
            raise RequestError("invalid", "the field is not valid UTF-8", param=self._name[:64]) from None

    def _end(self) -> None:
        self.is_complete = True

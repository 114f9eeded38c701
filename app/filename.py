"""Owns what is shown of a client's file name: one short printable line, which never becomes a path.

Knows nothing of forms beyond the one header that holds the name.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

MAX_NAME_CHARS = 255
NAMELESS = "upload"
_EXTENDED = re.compile(rb"filename\*\s*=\s*(utf-8|iso-8859-1)'[^']*'([!-~]+?)\s*(?:;|$)", re.IGNORECASE)


def read_file_name(disposition: bytes, plain: bytes | None) -> str:
    """The name in a Content-Disposition header; RFC 5987's spelling (`filename*=`) beats the plain one."""
    match = _EXTENDED.search(disposition)
    if match is None:
        return clean_file_name((plain or b"").decode("utf-8", "replace"))
    charset = "latin-1" if match[1].lower() == b"iso-8859-1" else "utf-8"
    return clean_file_name(unquote_to_bytes(match[2]).decode(charset, "replace"))


def clean_file_name(name: str) -> str:
    """'../../Clip 1.mp4' -> 'Clip 1.mp4'"""
    last = re.split(r"[/\\]", name)[-1]
    shown = "".join(char for char in last if char.isprintable()).strip()
    return shown[-MAX_NAME_CHARS:] if shown.strip(".") else NAMELESS

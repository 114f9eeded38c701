"""A client's file name is a line to show: never a path, never of any length, never invisible."""

from __future__ import annotations

import pytest

from app.filename import NAMELESS, clean_file_name, read_file_name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("clip.mp4", "clip.mp4"),
        ("../../etc/x.mp4", "x.mp4"),
        ("/etc/passwd", "passwd"),
        ("C:\\Users\\me\\clip.mp4", "clip.mp4"),
        ("a\0b\r\nc.mp4", "abc.mp4"),
        ("\u202egpj.exe", "gpj.exe"),
        ("видео — 🎬.mp4", "видео — 🎬.mp4"),
        ("n" * 300 + ".mp4", "n" * 251 + ".mp4"),
        ("", NAMELESS),
        ("..", NAMELESS),
        ("a/", NAMELESS),
        (" \t", NAMELESS),
    ],
)
def test_clean(name: str, shown: str) -> None:
    assert clean_file_name(name) == shown


@pytest.mark.parametrize(
    ("disposition", "shown"),
    [
        (b"form-data; name=file; filename*=UTF-8''%D0%B2.mp4", "в.mp4"),
        (b'form-data; name="file"; filename="plain"; filename*=utf-8\'en\'%D0%B2.mp4', "в.mp4"),
        (b"form-data; filename*=iso-8859-1''%FC.mp4; name=file", "ü.mp4"),
        (b"form-data; filename*=UTF-8''..%2F..%2Fx", "x"),
        (b"form-data; filename*=UTF-8''%FF%00", "\ufffd"),
        (b"form-data; filename*=KLINGON''x", "plain"),
        (b"form-data; name=file", "plain"),
    ],
)
def test_both_spellings(disposition: bytes, shown: str) -> None:
    """RFC 5987's is the better one where a client sends both."""
    assert read_file_name(disposition, b"plain") == shown

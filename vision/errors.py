"""What can go wrong with one media item, drawn once.

Knows nothing of HTTP: the statuses named here are what the caller is expected to map the classes to.

    MediaError                    the item cannot be used; the message says what to do about it
    |- UnsupportedMediaError      415: a container or codec that is not taken; the message names it
    |- UndecodableError           422: the right kind of file, but no picture in it can be shown
    |- MediaTooLargeError         413: a stated limit is passed; the message names the limit and the value
    |- InvalidMediaOptionError    400: an option (`param`) can never work as written
    |- DecodeDeadlineError        504: decoding took longer than its limit and was killed
    |- DecodeCrashedError         422: the decoder died on this item; nothing else was harmed
    `- DecodeCancelledError       nobody waits for the answer any more

Messages never hold a path, an address, a traceback or a piece of the payload: they are shown to the sender.
"""

from __future__ import annotations


class MediaError(Exception):
    """Root of all errors of one media item. `message` is fit to be shown to whoever sent the item."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UnsupportedMediaError(MediaError):
    """A container or codec that is not taken."""


class UndecodableError(MediaError):
    """No video stream, no frames, or too damaged to show anything."""


class MediaTooLargeError(MediaError):
    """A limit on bytes, pixels, frames or duration is passed."""


class InvalidMediaOptionError(MediaError):
    """An option that can never work as written; `param` names it."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


class DecodeDeadlineError(MediaError):
    """Decoding took longer than its limit and was killed."""


class DecodeCrashedError(MediaError):
    """The decoding process died on this item."""


class DecodeCancelledError(MediaError):
    """The caller cancelled, or the pool was closed, while the item was waiting or being decoded."""

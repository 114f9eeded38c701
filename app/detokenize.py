"""Owns the way from token ids to text, one token at a time.

Knows nothing of stop strings, choices or HTTP. The law: the deltas joined are `tokenizer.decode(ids,
skip_special_tokens=True)` for any ids, and no delta ends inside a character.

Two kinds of vocabulary spread a character over tokens. In a byte-level one, text up to a last U+FFFD is final, because
an unfinished character decodes to exactly one U+FFFD at the end. In one with byte fallback (`<0xE2>`), the library
judges a whole run of byte tokens at once, one bad byte spoiling all of it, so a run is shown when it has ended.
"""

from __future__ import annotations

import json
import re

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
WINDOW_TOKENS = 16  # longer than this without a clean border means garbage: look for a border by trying
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_PIECE = "\u2581"


class Vocabulary:
    """A tokenizer as the detokeniser needs it; shared by all requests, used from one thread."""

    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._added = {token_id: token.content for token_id, token in added.items()}
        decoders = _list_decoders(json.loads(tokenizer_json).get("decoder"))
        self.is_byte_level = "ByteLevel" in decoders
        self._has_byte_fallback = "ByteFallback" in decoders
        self._has_space_piece = bool(decoders & {"Metaspace", "Replace"})

    def decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def is_visible(self, token_id: int) -> bool:
        """False for special tokens and for ids the tokenizer does not have (padding of the logits)."""
        return token_id not in self._special and self._tokenizer.id_to_token(token_id) is not None

    def is_byte_piece(self, token_id: int) -> bool:
        piece = self._tokenizer.id_to_token(token_id) if self._has_byte_fallback else None
        return piece is not None and _BYTE_PIECE.fullmatch(piece) is not None

    def spell_token(self, token_id: int) -> bytes:
        """The token's own bytes, for log-probabilities: it may be part of a character."""
        piece: str | None = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        if token_id in self._added:
            return self._added[token_id].encode()
        if self.is_byte_level and all(char in _CHAR_TO_BYTE for char in piece):
            return bytes(_CHAR_TO_BYTE[char] for char in piece)
        if self._has_byte_fallback and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return (piece.replace(_SPACE_PIECE, " ") if self._has_space_piece else piece).encode()


class Detokenizer:
    """Text of one answer. A short prefix of shown tokens gives the decoder what it needs to know of the past:

    ids    [ ......... shown ......... | prefix | pending ]
    text                               |        | sent | held
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._prefix: list[int] = []
        self._prefix_chars = 0
        self._pending: list[int] = []
        self._sent_chars = 0

    def push(self, token_id: int) -> str:
        if not self._vocabulary.is_visible(token_id):
            return ""
        self._pending.append(token_id)
        if self._vocabulary.is_byte_piece(token_id):
            return ""
        text = self._decode_pending()
        unfinished = self._vocabulary.is_byte_level and text.endswith(REPLACEMENT)
        delta = text[self._sent_chars : len(text) - unfinished]
        self._sent_chars += len(delta)
        if not unfinished:
            self._settle(len(self._pending), len(text))
        elif len(self._pending) > WINDOW_TOKENS:
            self._cut_garbage(text)
        return delta

    def finish(self) -> str:
        """No more tokens: what was held is shown as the library shows it."""
        text = self._decode_pending()
        delta = text[self._sent_chars :]
        self._settle(len(self._pending), len(text))
        return delta

    def _decode_pending(self) -> str:
        return self._vocabulary.decode(self._prefix + self._pending)[self._prefix_chars :]

    def _settle(self, count: int, chars: int) -> None:
        """The first `count` pending tokens, `chars` long, are done with; the last of them becomes the prefix."""
        if count == 0:
            return
        self._prefix = self._pending[count - 1 : count]
        self._prefix_chars = len(self._vocabulary.decode(self._prefix))
        self._pending = self._pending[count:]
        self._sent_chars = max(0, self._sent_chars - chars)

    def _cut_garbage(self, text: str) -> None:
        """Bytes that never make a character leave no clean end, but within four bytes there is a clean border:
        one where the two sides decode to the whole."""
        for count in range(len(self._pending) - 1, len(self._pending) - 6, -1):
            right = self._vocabulary.decode(self._pending[count:])
            left = self._vocabulary.decode(self._prefix + self._pending[:count])[self._prefix_chars :]
            if right and left + right == text:
                self._settle(count, len(left))
                return


def _list_decoders(decoder: dict[str, object] | None) -> set[str]:
    if decoder is None:
        return set()
    inner = decoder.get("decoders")
    names = {str(decoder.get("type"))}
    for child in inner if isinstance(inner, list) else []:
        names |= _list_decoders(child)
    return names


def _map_chars_to_bytes() -> dict[str, int]:
    """Byte-level vocabularies write printable Latin-1 bytes as themselves and number the rest from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_CHAR_TO_BYTE = _map_chars_to_bytes()

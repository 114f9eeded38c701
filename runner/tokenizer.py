"""Text to token ids. Owns the difference between a template's special tokens and the same letters typed by a user."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from runner.chat import Piece

SLICE_CHARS = 1 << 14
BORDER_TOKENS = 256  # that a slice's borders may add, where they cut a token into its bytes


class PromptTokenizer:
    """Wraps transformers' fast tokenizer of a checkpoint."""

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError("this checkpoint has no fast tokenizer (tokenizer.json); convert it with transformers")
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self._special_ids = {token.content: index for index, token in added.items() if token.special}
        longest_first = sorted(self._special_ids, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @property
    def marks(self) -> tuple[str, ...]:
        """Strings that become special tokens."""
        return tuple(self._special_ids)

    @property
    def json(self) -> str:
        text: str = self._tokenizer.backend_tokenizer.to_str()
        return text

    def exceeds(self, text: str, limit: int) -> bool:
        """Whether a text is sure to have more tokens than `limit`. Read in slices and only as far as that takes, for
        tokenising what is far too long costs seconds and gigabytes."""
        count = 0
        for start in range(0, len(text), SLICE_CHARS):
            count += len(self._encode_letters(text[start : start + SLICE_CHARS])) - BORDER_TOKENS
            if count > limit:
                return True
        return False

    def encode(self, pieces: Sequence[Piece]) -> list[int]:
        """Tokenise a rendered prompt. Marks in users' pieces are encoded as the letters they are."""
        if all(piece.from_template for piece in pieces):
            ids: list[int] = self._tokenizer.encode("".join(p.text for p in pieces), add_special_tokens=False)
            return ids
        return self._encode_guarded(pieces)

    def _encode_guarded(self, pieces: Sequence[Piece]) -> list[int]:
        ids: list[int] = []
        pending = ""  # text between two special tokens is tokenised in one go, whoever wrote it
        for piece in pieces:
            if not piece.from_template:
                pending += piece.text
                continue
            position = 0
            for match in self._special.finditer(piece.text):
                ids += self._encode_letters(pending + piece.text[position : match.start()])
                ids.append(self._special_ids[match.group()])
                pending, position = "", match.end()
            pending += piece.text[position:]
        return ids + self._encode_letters(pending)

    def _encode_letters(self, text: str) -> list[int]:
        if not text:
            return []
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

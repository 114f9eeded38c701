"""Text to token ids. Owns the difference between a template's special tokens and the same letters typed by a user."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from runner.chat import Piece


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

"""Guesses by a smaller model of the same vocabulary, which reads the text of a sequence and sees none of its pictures.
Owns that model's keys and how far they reach; knows neither the target nor what becomes of its guesses.

Its rows are the text's alone: rows of pictures are left out, and positions count what is left. Behind the text lie the
rows of its own guesses, kept where the answer went on as guessed, and written over where it did not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from attention.leading import lead_rows
from attention.protocol import AttentionBackend, AttentionMetadata, PlannedAttention
from runner.families.base import DecoderShape, VisualRows
from runner.pages import PagePool, pages_for
from runner.row_ladder import choose_row_count
from runner.sequence import Sequence, SequenceId


class LanguageModel(Protocol):
    """What of a family is needed to guess; see runner.families.base.Family."""

    @property
    def shape(self) -> DecoderShape: ...
    def embed(self, token_ids: torch.Tensor) -> torch.Tensor: ...
    def forward(
        self, embeds: torch.Tensor, positions: torch.Tensor, visual: VisualRows | None, planned: PlannedAttention
    ) -> torch.Tensor: ...
    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


@dataclass(slots=True, kw_only=True, eq=False)
class _Text:
    """One sequence as the model reads it. prompt: (n,) int64, its text. num_computed: rows whose keys are the text's;
    guessed: tokens of the rows behind them."""

    prompt: np.ndarray
    output: list[int]
    num_computed: int = 0
    guessed: tuple[int, ...] = ()
    pages: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.prompt) + len(self.output)

    def tokens(self, start: int, stop: int) -> np.ndarray:
        size = len(self.prompt)
        tail = self.output[max(0, start - size) : max(0, stop - size)]
        return np.concatenate((self.prompt[start:stop], np.asarray(tail, dtype=np.int64)))

    def recall(self) -> None:
        """Rows of guesses that came true are the text's now; the newest token's is left to be computed."""
        for token in self.guessed:
            if self.num_computed >= len(self) - 1 or self.tokens(self.num_computed, self.num_computed + 1)[0] != token:
                break
            self.num_computed += 1
        self.guessed = ()


class DraftModel:
    """The model's thread alone calls this. max_rows: that one forward computes."""

    method = "draft"

    def __init__(self, model: LanguageModel, backend: AttentionBackend, *, max_rows: int) -> None:
        self._model, self._backend, self._max_rows = model, backend, max_rows
        self._row_count = choose_row_count(backend.layout.device.type)
        self._axes, self._max_positions = model.shape.rope_axes, model.shape.max_positions
        self.pages = PagePool(backend.layout.num_pages)
        self._texts: dict[SequenceId, _Text] = {}

    def reach(self, sequences: list[Sequence], most: int) -> list[int]:
        return [max(0, min(most, self._max_positions - len(self._text(sequence)))) for sequence in sequences]

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence], depth: int) -> list[tuple[int, ...]]:
        """Greedy guesses. A text that is not read to its end, or has no pages, gets none yet."""
        texts = [self._text(sequence) for sequence in sequences]
        for text in texts:
            text.recall()
        at_end, best = self._read(texts, depth, sequences[0].drawing.suppressed)
        guesses: dict[_Text, list[int]] = {text: [token] for text, token in zip(at_end, best, strict=True)}
        for _ in range(depth - 1 if at_end else 0):
            rows = [(text, np.array(guesses[text][-1:], dtype=np.int64)) for text in at_end]
            for text, token in zip(at_end, self._best(rows, sequences[0].drawing.suppressed), strict=True):
                guesses[text].append(token)
        for text in at_end:
            text.num_computed, text.guessed = len(text), tuple(guesses[text][:-1])
        return [tuple(guesses.get(text, ())) for text in texts]

    def forget(self, sequence_id: SequenceId) -> None:
        text = self._texts.pop(sequence_id, None)
        if text is not None:
            self.pages.give_back(text.pages)

    def _text(self, sequence: Sequence) -> _Text:
        if sequence.id not in self._texts:
            prompt = sequence.prompt
            self._texts[sequence.id] = _Text(prompt=prompt.token_ids[prompt.item < 0], output=sequence.output)
        return self._texts[sequence.id]

    def _read(self, texts: list[_Text], depth: int, suppressed: tuple[int, ...]) -> tuple[list[_Text], list[int]]:
        """One forward over what was not read yet, as much as it takes. Texts that are read to their end, and the token
        that each goes on with."""
        room, rows = self._max_rows, list[tuple[_Text, np.ndarray]]()
        for text in texts:
            stop = min(len(text), text.num_computed + room)
            if stop > text.num_computed and self._grow(text, depth):
                rows.append((text, text.tokens(text.num_computed, stop)))
                room -= stop - text.num_computed
        best = self._best(rows, suppressed) if rows else []
        done = [(text, token) for (text, _), token in zip(rows, best, strict=True) if text.num_computed == len(text)]
        return [text for text, _ in done], [token for _, token in done]

    def _grow(self, text: _Text, depth: int) -> bool:
        """Pages for its rows and those of its guesses but the last. False when there are none."""
        layout = self._backend.layout
        missing = pages_for(len(text) + depth - 1, layout.page_size) - len(text.pages)
        taken = self.pages.take(missing, after=text.pages[-1] if text.pages else None) if missing > 0 else []
        text.pages += taken or []
        return taken is not None

    def _best(self, rows: list[tuple[_Text, np.ndarray]], suppressed: tuple[int, ...]) -> list[int]:
        """Compute these tokens' rows, each text's next ones; the best token after the last row of each."""
        device = self._backend.layout.device
        counts = np.array([len(tokens) for _, tokens in rows], dtype=np.int64)
        starts = np.array([text.num_computed for text, _ in rows], dtype=np.int64)
        table = np.zeros((len(rows), max(len(text.pages) for text, _ in rows)), dtype=np.int64)
        for number, (text, _) in enumerate(rows):
            table[number, : len(text.pages)] = text.pages
        cu_seqlens = np.concatenate((np.zeros(1, np.int64), counts.cumsum()))
        metadata = AttentionMetadata(cu_seqlens=cu_seqlens, seq_lens=starts + counts, page_table=table)
        total = int(cu_seqlens[-1])
        more = np.zeros(self._row_count(total) - total, dtype=np.int64)
        places = np.concatenate([*(np.arange(s, s + n) for s, n in zip(starts, counts, strict=True)), more])
        positions = torch.from_numpy(np.tile(places, (self._axes, 1))).to(device)
        embeds = self._model.embed(torch.from_numpy(np.concatenate([*(tokens for _, tokens in rows), more])).to(device))
        planned = lead_rows(self._backend.plan(metadata), total, of=len(embeds))
        hidden = self._model.forward(embeds, positions, None, planned)
        logits = self._model.logits(hidden[torch.from_numpy(cu_seqlens[1:] - 1).to(device)])
        logits[:, list(suppressed)] = -torch.inf
        for text, tokens in rows:
            text.num_computed += len(tokens)
        return [int(token) for token in logits.argmax(-1).tolist()]

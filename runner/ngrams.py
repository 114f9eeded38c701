"""Guesses what an answer says next from what it and its prompt said before. Owns the search for the last place where
the newest tokens stood; knows no model.

The prompt's tokens are sorted once, those of the answer are noted as they come, so that a look costs as much as the
newest token has occurrences, however long the prompt is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Tokens that must have stood there before, in their order; of the places where most of them did, the last counts.
LONGEST, SHORTEST = 4, 2
HIDDEN = -1  # a row that is no text
MOST_PLACES = 4096  # the newest occurrences of a token that are looked at


class Ngrams:
    """One sequence's tokens. HIDDEN ones match nothing and are never guessed.

    Worked example: after 5 6 7 8 5 6 the last two stood at the start, so the guess of three tokens is 7 8 5; after
    9 9 9, where the guess runs into the newest token, it goes on with itself: 9 9 9.
    """

    def __init__(self, prompt: np.ndarray) -> None:
        """prompt: (L,) int64."""
        self._size = self._prompt_size = len(prompt)
        self._tokens = np.concatenate((prompt, np.zeros(64, np.int64)))
        self._order = np.argsort(prompt, kind="stable")  # places in the prompt by token, rising for each
        self._sorted = prompt[self._order]
        self._places: dict[int, list[int]] = {}  # of the answer's tokens

    def __len__(self) -> int:
        return self._size

    def extend(self, tokens: Sequence[int]) -> None:
        """The answer's next tokens."""
        wanted = self._size + len(tokens)
        if wanted > len(self._tokens):
            grown = np.zeros(2 * wanted, np.int64)
            grown[: self._size] = self._tokens[: self._size]
            self._tokens = grown
        for place, token in enumerate(tokens, start=self._size):
            self._places.setdefault(token, []).append(place)
        self._tokens[self._size : wanted] = tokens
        self._size = wanted

    def guess(self, count: int) -> tuple[int, ...]:
        """At most `count` tokens; none where nothing matched."""
        place = self._find()
        if place is None:
            return ()
        period = self._size - 1 - place  # the guess may run over the end: then it repeats what it began with
        after = self._tokens[place + 1 : min(self._size, place + 1 + count)]
        hidden = np.flatnonzero(after == HIDDEN)
        if len(hidden):
            return tuple(after[: hidden[0]].tolist())
        return tuple(after[np.arange(count) % period].tolist())

    def _find(self) -> int | None:
        """Where the newest tokens ended before: most of them, and of such places the last."""
        if self._size <= SHORTEST or self._tokens[self._size - 1] == HIDDEN:
            return None
        found, last = None, self._size - 1
        places = self._occurrences(int(self._tokens[last]))
        for back in range(1, LONGEST):
            if back > last or self._tokens[last - back] == HIDDEN:
                break
            places = places[places >= back]
            places = places[self._tokens[places - back] == self._tokens[last - back]]
            if not len(places):
                break
            found = int(places[-1]) if back + 1 >= SHORTEST else None
        return found

    def _occurrences(self, token: int) -> np.ndarray:
        """Places of a token before the newest, rising; the MOST_PLACES last ones."""
        newer = self._places.get(token, [])[-MOST_PLACES - 1 :]
        low, high = np.searchsorted(self._sorted, (token, token + 1))
        older = self._order[max(low, high - MOST_PLACES) : high]
        places: np.ndarray = np.concatenate((older, np.asarray(newer, dtype=np.int64)))
        return places[places < self._size - 1]

"""Owns the tokenizer of the demo model and the text round a clip. Knows nothing of tensors.

Byte-level BPE with single digits. A tokenizer is trained on the questions and answers of random scenes; one that exists
can be taught further words without a change to any word that it knows whole.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from demo.questions import ask_all, ask_description
from demo.scenes import slot_time
from demo.stage import make_scene

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
VOCABULARY = 704
CORPUS_SCENES = 3000


def make_corpus(seed: int, scenes: int = CORPUS_SCENES) -> Iterator[str]:
    """Questions and answers of random scenes, with times."""
    rng = random.Random(seed)
    for _ in range(scenes):
        scene = make_scene(rng, "all", frames=16, height=128, width=128)
        for question in (*ask_all(rng, scene), ask_description(rng, scene)):
            yield f"user\n<{rng.uniform(0, 40):.1f} seconds>{question.text}\nassistant\n{question.answer}"


def train_tokenizer(seed: int = 1, scenes: int = CORPUS_SCENES) -> Tokenizer:
    """A tokenizer of at most VOCABULARY tokens from nothing."""
    tokenizer = Tokenizer(models.BPE())
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(make_corpus(seed, scenes), trainer)
    return tokenizer


def extend_tokenizer(tokenizer: Tokenizer, seed: int = 1, scenes: int = CORPUS_SCENES) -> Tokenizer:
    """The tokenizer with merges appended, most frequent pair first, until the corpus' words are whole or the vocabulary
    is full. Old tokens keep their numbers."""
    whole: Counter[str] = Counter()
    for text, times in Counter(make_corpus(seed, scenes)).items():
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text):
            whole[word] += times
    words = Counter({tuple(t.value for t in tokenizer.model.tokenize(word)): n for word, n in whole.items()})
    data = json.loads(tokenizer.to_str())
    vocabulary, merges = data["model"]["vocab"], data["model"]["merges"]
    while len(vocabulary) < VOCABULARY:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(list(best))
        vocabulary["".join(best)] = len(vocabulary)
        merged: Counter[tuple[str, ...]] = Counter()
        for word, count in words.items():
            merged[_merge(word, best)] += count
        words = merged
    return Tokenizer.from_str(json.dumps(data))


def _merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """Worked example: ("t", "u", "r", "n") and ("r", "n") give ("t", "u", "rn")."""
    out: list[str] = []
    place = 0
    while place < len(word):
        if word[place : place + 2] == pair:
            out.append("".join(pair))
            place += 2
        else:
            out.append(word[place])
            place += 1
    return tuple(out)


def slot_text(slot: int, start: int = 0) -> str:
    """Worked example: the first slot of a clip that begins at 9 s: "<9.2 seconds>"."""
    return f"<{slot_time(slot, start)} seconds>"


class Words:
    """Token ids of the texts that make up a prompt."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        ids = tokenizer.get_vocab()
        self.end_of_text, self.start, self.end = ids["<|endoftext|>"], ids["<|im_start|>"], ids["<|im_end|>"]
        self.vision_start, self.vision_end = ids["<|vision_start|>"], ids["<|vision_end|>"]
        self.image_pad, self.video_pad = ids["<|image_pad|>"], ids["<|video_pad|>"]
        self.of = lru_cache(maxsize=None)(self._encode)
        self.user = (self.start, *self.of("user\n"))
        self.assistant = (self.end, *self.of("\n"), self.start, *self.of("assistant\n"))

    @classmethod
    def of_folder(cls, folder: Path) -> Words:
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text).ids)

    def time(self, slot: int, start: int = 0) -> tuple[int, ...]:
        """What stands before a slot's cells; start: the clip's first second."""
        return self.of(slot_text(slot, start))

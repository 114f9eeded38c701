"""Deltas joined are the library's own decoding, for any ids, and no delta ends inside a character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from app.detokenize import REPLACEMENT, WINDOW_TOKENS, Detokenizer, Vocabulary
from tests.app.fake_engine import VOCAB_SIZE, make_byte_tokenizer

HARD_TEXTS = [
    "👩‍👩‍👧‍👦🏳️‍🌈👋🏻",
    "e\u0301 \u1e9b\u0323 Å",
    "𠜎𠜱𡿨 社区非常活跃",
    "שלום مرحبا \u202eabc",
    "\U0001f9ff" * 5,
    "ẞßﬀ",
    "\ufffd literal",
    "literal \ufffd",
    "\ufffd" * 40,
]
# Leads without followers, followers without leads, surrogates, overlong forms, and plain letters between them.
NASTY_BYTES = [0x80, 0x9F, 0xBF, 0xC3, 0xC0, 0xE2, 0xED, 0xA0, 0xEF, 0xBD, 0xF0, 0x98, 0xF4, 0x90, 0xFF, 0x41, 0x20]


def make_merged_byte_tokenizer() -> Tokenizer:
    """Byte-level, with tokens of several bytes that begin and end inside characters."""
    base = make_byte_tokenizer()
    vocab = base.get_vocab(with_added_tokens=False)
    char = {index: piece for piece, index in vocab.items()}
    merges = []
    for left, right in [(0xF0, 0x9F), (0x98, 0x80), (0x9F, 0x98), (0xE2, 0x80), (0x80, 0x8D), (0x20, 0x41)]:
        merges.append((char[left], char[right]))
        vocab[char[left] + char[right]] = len(vocab) + 100
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens(["<think>", "naïve"])
    return tokenizer


def make_fallback_tokenizer(decoder: decoders.Decoder) -> Tokenizer:
    pieces = ["<unk>", "<s>", "▁", "▁▁", "▁a", "b", "▁<", "é", "社", "▁\ufffd", "\ufffd"]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<s>", "<end>"])
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


TOKENIZERS = {
    "bytes": make_byte_tokenizer(),
    "merged bytes": make_merged_byte_tokenizer(),
    "llama": make_fallback_tokenizer(
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    ),
    "gemma": make_fallback_tokenizer(
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    ),
    "metaspace": make_fallback_tokenizer(decoders.Metaspace()),
    "metaspace never": make_fallback_tokenizer(decoders.Metaspace(prepend_scheme="never")),
    "none": make_fallback_tokenizer(decoders.Fuse()),
}


def push_all(vocabulary: Vocabulary, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(vocabulary)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=150)
def test_deltas_joined_are_the_librarys_text(name: str, data: st.DataObject) -> None:
    """For any ids: special ones, ones beyond the vocabulary, broken bytes."""
    tokenizer = TOKENIZERS[name]
    vocabulary = Vocabulary(tokenizer.to_str())
    size = max(tokenizer.get_vocab().values()) + 3
    nasty = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in NASTY_BYTES]
    nasty = NASTY_BYTES if None in nasty else nasty
    one = st.one_of(st.integers(0, size), st.sampled_from(nasty), st.integers(0, 12))
    ids = data.draw(st.lists(one, max_size=60))
    assert "".join(push_all(vocabulary, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("text", HARD_TEXTS)
@pytest.mark.parametrize("name", ["bytes", "merged bytes"])
def test_no_delta_ends_inside_a_character(name: str, text: str) -> None:
    """No replacement character appears but those that the text has."""
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text).ids if name == "merged bytes" else list(text.encode())
    deltas = push_all(Vocabulary(tokenizer.to_str()), ids)
    assert "".join(deltas) == text
    assert sum(delta.count(REPLACEMENT) for delta in deltas) == text.count(REPLACEMENT)


def test_text_cut_inside_a_character_ends_as_the_library_ends_it() -> None:
    """max_tokens may cut an emoji; what is left over comes with the flush and not before."""
    ids = list("ok 👋".encode())[:-1]
    assert push_all(Vocabulary(TOKENIZERS["bytes"].to_str()), ids) == ["o", "k", " ", "", "", "", REPLACEMENT]


def test_run_of_byte_tokens_is_shown_when_it_ends() -> None:
    """One bad byte spoils the whole run, so nothing of it may be shown before its end is known."""
    tokenizer = TOKENIZERS["llama"]
    run = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "é".encode()]
    letter = tokenizer.token_to_id("b")
    assert push_all(Vocabulary(tokenizer.to_str()), [*run, letter, letter]) == ["", "", "éb", "b", ""]


@pytest.mark.parametrize("garbage", [[0x80], [0xF0, 0x9F], [0xF0], [0xE2, 0x80, 0x41], [0xEF, 0xBF, 0xBD]])
def test_garbage_without_end_keeps_the_window_short(garbage: list[int]) -> None:
    """Cost per token stays bounded although no text ever ends cleanly."""
    vocabulary = Vocabulary(TOKENIZERS["bytes"].to_str())
    detokenizer = Detokenizer(vocabulary)
    ids = garbage * 500
    text = ""
    for token_id in ids:
        text += detokenizer.push(token_id)
        assert len(detokenizer._pending) <= WINDOW_TOKENS + 4
    assert text + detokenizer.finish() == vocabulary.decode(ids)


@pytest.mark.parametrize(
    ("name", "piece", "spelled"),
    [
        ("bytes", "Ġ", b" "),
        ("bytes", "ð", b"\xf0"),
        ("bytes", "<think>", b"<think>"),
        ("bytes", "<|end|>", b"<|end|>"),
        ("merged bytes", "naïve", "naïve".encode()),
        ("llama", "<0xF0>", b"\xf0"),
        ("llama", "▁a", b" a"),
        ("metaspace", "▁a", b" a"),
        ("none", "▁a", "▁a".encode()),
    ],
)
def test_token_is_spelled_in_its_own_bytes(name: str, piece: str, spelled: bytes) -> None:
    """Log-probabilities name tokens that are parts of characters, so their bytes must be exact."""
    tokenizer = TOKENIZERS[name]
    assert Vocabulary(tokenizer.to_str()).spell_token(tokenizer.token_to_id(piece)) == spelled


def test_id_beyond_the_vocabulary_is_nothing() -> None:
    """Logits are padded to a round number; an id from the padding has no text."""
    vocabulary = Vocabulary(TOKENIZERS["bytes"].to_str())
    assert vocabulary.spell_token(VOCAB_SIZE - 1) == b""
    assert not vocabulary.is_visible(VOCAB_SIZE - 1)

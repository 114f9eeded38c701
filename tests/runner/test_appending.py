"""Frames that are appended to a live sequence read as if they had stood in its prompt: against transformers where
nothing was drawn yet, against a fresh prompt of the same rows afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from runner.appending import Addition, extend_prompt, lay_out_addition
from runner.errors import RequestError
from runner.items import MediaItem
from runner.prompt import Prompt
from runner.ranges import longest_range
from runner.requests import EvsOptions
from runner.sequence import Sequence
from tests.checkpoints import BUILDERS
from tests.harness import Answer, LocalEngine, local_engine, rebuilt
from tests.oracle import Part, answer, as_message, noise_clip, worst_error
from tests.runner.test_history import assert_same

FIRST, SECOND = noise_clip(11, num_frames=5, size=(70, 100)), noise_clip(12, num_frames=4, size=(64, 64))
WHOLE: list[Part] = ["one", FIRST, "two", SECOND, "three"]
REFUSING = {"paligemma"}  # reads its prompt as a whole
MAX_TOKENS = 5


@pytest.fixture(scope="module", params=sorted(set(BUILDERS) - REFUSING))
def local(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Iterator[tuple[LocalEngine, Path]]:
    folder = checkpoint(request.param)
    with local_engine(folder) as engine:
        yield engine, folder


def row_of_second(prompt: Prompt) -> int:
    """A row between the two clips, right behind the first's cells."""
    return int(np.flatnonzero(prompt.rank >= 0)[np.flatnonzero(prompt.item[prompt.rank >= 0] == 0)[-1]]) + 1


def cut(prompt: Prompt, items: tuple[MediaItem, ...], row: int) -> tuple[Prompt, Addition]:
    """A prompt's first rows, and the rest as an addition that counts from 0, as it would be laid out by itself."""

    def part(rows: slice, *, shift: int, first_item: int, next_position: int) -> Prompt:
        item = prompt.item[rows]
        return Prompt(
            token_ids=prompt.token_ids[rows], positions=prompt.positions[:, rows] - shift,
            item=np.where(item >= 0, item - first_item, -1).astype(np.int32), rank=prompt.rank[rows],
            next_position=next_position - shift,
            ranges=tuple((a - rows.start, b - rows.start) for a, b in prompt.ranges if rows.start <= a < rows.stop),
        )  # fmt: skip

    after = int(prompt.positions[:, row].min())  # a row of text
    head = part(slice(0, row), shift=0, first_item=0, next_position=after)
    tail = part(slice(row, len(prompt)), shift=after, first_item=1, next_position=prompt.next_position)
    return head, Addition(prompt=tail, items=items[1:])


def submit(
    engine: LocalEngine, prompt: Prompt, items: tuple[MediaItem, ...], max_tokens: int = MAX_TOKENS, **values: float
) -> Sequence:
    """A sequence of just these rows."""
    name = engine.submit(
        [as_message(["x"])], sampling=msgspec.structs.replace(engine.everything(max_tokens), seed=7, **values)
    )
    sequence = engine.engine._sequences[name, 0]
    sequence.prompt, sequence.items = prompt, items
    sequence._find_last_rows()
    return sequence


def finish(engine: LocalEngine, sequence: Sequence) -> Answer:
    engine.run()
    return engine.answers[sequence.id]


@pytest.mark.parametrize("evs", [None, EvsOptions(method="gate", threshold=0.9, refresh=4)], ids=["dense", "pruned"])
def test_frames_appended_are_frames_in_the_prompt(local: tuple[LocalEngine, Path], evs: EvsOptions | None) -> None:
    """In the middle of its prefill a sequence is given the second clip and the question."""
    engine, folder = local
    laid = engine.lay_out([as_message(WHOLE)], evs)
    head, tail = cut(laid.prompt, laid.items, row_of_second(laid.prompt) + 2)
    rows = max(engine.smallest_step([as_message(WHOLE)]), 8)
    small = rebuilt(engine, folder, max_num_batched_tokens=rows, max_num_seqs=1)
    sequence = submit(small, head, laid.items[:1])
    small.step()
    assert 0 < sequence.num_computed_tokens < len(head) or len(head) <= rows
    small.engine.append(sequence.id, tail)
    found = finish(small, sequence)
    assert sequence.prompt.positions.tolist() == laid.prompt.positions.tolist()
    assert sequence.prompt.ranges == laid.prompt.ranges
    if evs is None:
        reference = answer(folder, WHOLE, MAX_TOKENS)
        assert worst_error(found.logprobs[:1], reference.logits[:1].log_softmax(-1)) < 1e-4
        assert found.token_ids == reference.token_ids
    assert_same(found, engine.answer([as_message(WHOLE)], sampling=engine.everything(MAX_TOKENS), evs=evs))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drawing_sequence_goes_on_behind_new_frames(local: tuple[LocalEngine, Path], temperature: float) -> None:
    """After three tokens, with tight pages, it is given a clip; it goes on as a fresh prompt of the same rows does,
    greedily or with the same draws."""
    engine, _ = local
    family, tokenizer = engine.assembled.loaded.family, engine.assembled.loaded.tokenizer
    laid = engine.lay_out([as_message(["one", FIRST, "two"])])
    clip = engine.lay_out([as_message([SECOND])]).items[0]
    try:
        addition = lay_out_addition(family, tokenizer, [" then ", clip, " and?"])
    except RequestError:
        pytest.skip("this template writes clips elsewhere than between texts")
    sequence = submit(engine, laid.prompt, laid.items, MAX_TOKENS + 3, temperature=temperature)
    while len(sequence.output) < 3:
        engine.step()
    drawn = list(sequence.output)
    engine.engine.append(sequence.id, addition)
    found = finish(engine, sequence)
    assert found.token_ids[:3] == drawn and len(found.token_ids) == MAX_TOKENS + 3
    whole = extend_prompt(laid.prompt, drawn, addition.prompt, num_items=1)
    fresh = finish(engine, submit(engine, whole, (*laid.items, clip), temperature=temperature))
    rest = replace(found, token_ids=found.token_ids[3:], tops=found.tops[3:])
    if temperature:
        assert rest.token_ids == fresh.token_ids
    assert_same(rest, fresh)


def test_the_worked_example_of_positions() -> None:
    def text(count: int, next_position: int) -> Prompt:
        return Prompt(
            token_ids=np.arange(count), positions=np.arange(count)[None], item=np.full(count, -1, np.int32),
            rank=np.full(count, -1), next_position=next_position,
        )  # fmt: skip

    long, one = text(2, 5), text(1, 1)
    assert extend_prompt(long, [], one, num_items=0).positions.tolist() == [[0, 1, 2]]
    assert extend_prompt(long, [], one, num_items=0).next_position == 5
    after = extend_prompt(long, [7], one, num_items=0)
    assert (after.positions.tolist(), after.next_position) == ([[0, 1, 5, 6]], 7)


# ------------------------------------------------------------------------------------------------- what can be held


def words(engine: LocalEngine, rows: int) -> Addition:
    """So many rows of text, exactly: a letter is a token in all tokenizers here."""
    loaded = engine.assembled.loaded
    addition = lay_out_addition(loaded.family, loaded.tokenizer, ["a" * rows])
    assert len(addition.prompt) == rows
    return addition


@pytest.mark.parametrize("bound", ["context", "pages"])
def test_no_more_is_appended_than_can_be_held(local: tuple[LocalEngine, Path], bound: str) -> None:
    """To the row: what fits with all that may still be drawn is read and answered behind; a row more, in one go or in
    two, is refused, and the sequence goes on as if nobody had asked."""
    engine, folder = local
    context = 160  # ten pages
    page_bytes = engine.engine.runner.backend.layout.page_bytes
    values = {"max_model_len": context} if bound == "context" else {"kv_memory_bytes": 10 * page_bytes}
    small = rebuilt(engine, folder, **values)
    alone = small.answer([as_message(["one"])], sampling=small.everything(8))
    room = context - alone.usage.prompt_tokens - 8
    for sizes, is_taken in (([room], True), ([room - 20, 20], True), ([room + 1], False), ([room - 20, 21], False)):
        name = small.submit([as_message(["one"])], sampling=small.everything(8))
        while small.engine._sequences[name, 0].num_drawn < 3:
            small.step()
        refusals = []
        for size in sizes:
            try:
                small.engine.append((name, 0), words(small, size))
            except RequestError as refusal:
                refusals.append((refusal.kind, refusal.code, f"{context + 1} tokens" in refusal.message))
        small.run()
        found = small.answers[name, 0]
        assert (found.finish_reason, len(found.token_ids)) == ("length", 8)
        assert found.token_ids[:3] == alone.token_ids[:3]
        assert refusals == ([] if is_taken else [("invalid", "context_length_exceeded", True)])
        if sizes == [room + 1]:
            assert_same(found, alone)


def test_an_addition_that_no_step_can_read_is_refused(local: tuple[LocalEngine, Path]) -> None:
    """Gemma 3 reads a picture's rows both ways, so they must fit a step, and their encodings the store."""
    engine, folder = local
    if engine.assembled.loaded.family.shape.prefix == "none":
        pytest.skip("this model reads forwards alone")
    laid = engine.lay_out([as_message(WHOLE)])
    head, tail = cut(laid.prompt, laid.items, row_of_second(laid.prompt) + 2)
    rows = longest_range(tail.prompt.ranges)
    for values, kind in (({"max_num_batched_tokens": rows - 1}, "invalid"), ({"encoder_cache_bytes": 1}, "too_large")):
        small = rebuilt(engine, folder, max_num_seqs=1, **values)
        sequence = submit(small, head, laid.items[:1])
        with pytest.raises(RequestError) as refusal:
            small.engine.append(sequence.id, tail)
        assert refusal.value.kind == kind
        small.engine._append_waiting()
        assert (len(sequence), sequence.items) == (len(head), laid.items[:1])
        small.receive(small.engine.abort(sequence.request_id, None))
    small = rebuilt(engine, folder, max_num_seqs=1, max_num_batched_tokens=max(rows, longest_range(head.ranges)))
    sequence = submit(small, head, laid.items[:1])
    small.engine.append(sequence.id, tail)
    assert finish(small, sequence).finish_reason == "length"


def test_what_comes_too_late_is_counted(local: tuple[LocalEngine, Path]) -> None:
    engine, _ = local
    before = engine.engine.counters["appended_too_late"]
    laid = engine.lay_out([as_message(["x"])])
    engine.engine.append(("nobody", 0), Addition(prompt=laid.prompt, items=()))
    engine.answer([as_message(["y"])])
    assert engine.engine.counters["appended_too_late"] == before + 1

"""Rows that speak of a timed event are taught to look at its cells and at its time, and at nothing else."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from demo.batches import Batch, prune_and_encode
from demo.draws import Sample
from demo.labels import label_cells
from demo.looks import Look, find_looks, look_loss
from demo.net import POINTERS, Reader, Tower, make_model
from demo.prompts import IGNORED, find_answers
from demo.pruning import Regime
from demo.questions import ask_all, ask_description
from demo.render import Filming, render_scene
from demo.scenes import Scene, Thing
from demo.tokens import Words, train_tokenizer

TURNS = Thing(
    color="black", shape="square", radius=12, act="turn", start=(16, 16), end=(16, 16), slot=3, becomes="white"
)
COMES = Thing(color="red", shape="star", radius=12, act="appear", start=(80, 48), end=(80, 48), slot=1)
STAYS = Thing(color="blue", shape="circle", radius=12, act="still", start=(16, 80), end=(16, 80))
STORY = Scene(things=(TURNS, COMES, STAYS), frames=8, height=96, width=96, start=9)


@lru_cache
def words() -> Words:
    return Words(train_tokenizer(scenes=300))


@lru_cache
def model() -> tuple[Tower, Reader]:
    made = make_model(words(), 3)
    return Tower(made), Reader(made)


def batch_of(regime: Regime = "none", story: Scene = STORY) -> Batch:
    rng = random.Random(1)
    questions = (*ask_all(rng, story), ask_description(rng, story))
    frames = render_scene(rng, story, Filming(noise=0.0))
    sample = Sample(scene=story, frames=frames, questions=questions, labels=label_cells(story), is_image=False)
    return prune_and_encode(rng, model()[0], words(), [sample], regime, uses_reuse=False)


def read_answers(batch: Batch) -> dict[str, tuple[str, set[int], set[int]]]:
    """By question: words whose rows look at cells, those cells (slot * 9 + place), and slots looked up for times."""
    ids, rows = batch.prompts.ids[0].tolist(), np.flatnonzero(batch.prompts.cells[0].numpy())
    numbers, said = np.flatnonzero(batch.keep[0]), words().tokenizer.decode
    heads = [row for row, token in enumerate(ids) if token == words().vision_start]
    looks = find_looks(words(), batch)
    found = {}
    for question, answer in zip(batch.samples[0].questions, find_answers(batch.prompts.labels[0].numpy()), strict=True):
        own = [look for look in looks if look.row + 1 in answer]
        told = said([ids[row + 1] for row in sorted({look.row for look in own})])
        cells = {int(numbers[rows.tolist().index(at)]) for look in own if look.pointer == 0 for at in look.at}
        times = {at for look in own if look.pointer == 1 for at in look.at}
        slots = {next(n for n, head in enumerate(heads) if head > at) for at in times}
        found[question.text] = (told, cells, slots)
    return found


def test_answers_look_at_the_event_that_they_speak_of() -> None:
    """The square in the first cell turns in slot 3, the star in the sixth appears in slot 1; what stays has none."""
    found = read_answers(batch_of())
    assert found["What appears?"] == ("a red star.", {9 + 5}, set())
    assert found["What changes color?"] == ("a black square.", {27}, set())
    assert found["What happens first?"] == ("a red star appears.", {9 + 5}, set())
    assert found["What happens last?"] == ("a black square turns white.", {27}, set())
    assert found["When does the black square turn white?"] == ("at 12.2", {27}, {3})
    assert found["What does the blue circle do?"] == ("", set(), set())
    told, cells, slots = next(value for text, value in found.items() if value[0].count("at") == 2)
    assert told == "A red star appears at 10.2 A black square turns white at 12.2 A blue circle stays still."
    assert (cells, slots) == ({9 + 5, 27, 6, 9 + 6, 18 + 6, 27 + 6}, {1, 3})


def test_a_passing_is_looked_for_where_two_overlap() -> None:
    """In slot 1 of 3 the star is right behind the circle in the middle of the picture. Its direction is sought nowhere
    in particular when asked for, and in all that it covers when described."""
    mover = Thing(
        color="green", shape="star", radius=12, act="move", start=(16, 48), end=(80, 48), direction="left to right"
    )
    circle = replace(STAYS, start=(48, 48), end=(48, 48))
    story = Scene(things=(mover, circle), frames=6, height=96, width=96, passing=("behind", circle))
    found = read_answers(batch_of(story=story))
    assert found["What does the moving object pass?"] == ("a blue circle.", {9 + 4}, set())
    assert found["Does the green star pass behind or in front of the blue circle?"] == ("behind.", {9 + 4}, set())
    assert found["Which way does the moving object go?"] == found["What does the green star do?"] == ("", set(), set())
    told, cells, _ = next(value for value in found.values() if "moves" in value[0])
    assert told == "A green star moves left to right behind a blue circle. A blue circle stays still."
    assert cells >= {3, 4, 9 + 4, 18 + 4, 18 + 5}


def test_a_digit_looks_at_the_same_digit() -> None:
    """What is next in "12.2" is looked for where the turn's slot says "<12.2 seconds>", in the same place of it."""
    batch = batch_of()
    ids, said = batch.prompts.ids[0].tolist(), words().tokenizer.decode
    looks = [look for look in find_looks(words(), batch) if look.pointer == 1]
    read = [(said([ids[look.row + 1]]), said([ids[look.at[0]]])) for look in looks]
    assert len(read) > 12 and all(next_token == seen for next_token, seen in read)
    asked = [question.text for question in batch.samples[0].questions]
    answer = find_answers(batch.prompts.labels[0].numpy())[asked.index("When does the black square turn white?")]
    at = [look.at[0] for look in looks if look.row + 1 in answer]
    assert at == list(range(at[0], at[0] + 4))


def test_what_is_pruned_is_not_looked_at() -> None:
    """Cells that the gate drops have no rows; the event's cell, which it keeps, is still found."""
    batch = batch_of("gate")
    assert batch.keep.mean() < 0.6
    assert read_answers(batch)["What appears?"] == ("a red star.", {9 + 5}, set())


def test_the_worked_example_of_answers() -> None:
    """Two answers, the second of which ends with the row."""
    assert find_answers(np.array([IGNORED, 5, 2, IGNORED, 7, 2])) == [[1, 2], [4, 5]]


def test_the_loss_is_the_share_that_goes_elsewhere() -> None:
    """Four rows seen, scores such that a quarter and a half fall where they should; what is hidden takes no share."""
    scores, mask = torch.zeros(2, 1, 5, 5), torch.ones(1, 1, 5, 5, dtype=torch.bool)
    mask[..., 4] = False
    looks = [Look(pointer=0, clip=0, row=2, at=(1,)), Look(pointer=1, clip=0, row=3, at=(0, 2))]
    assert look_loss(scores, mask, looks).item() == pytest.approx((np.log(4) + np.log(2)) / 2)
    scores[0, 0, 2, 1] = 50
    assert look_loss(scores, mask, looks[:1]).item() == pytest.approx(0, abs=1e-6)
    assert look_loss(scores, mask, []).item() == 0


def test_scores_are_those_of_the_model() -> None:
    """Softmax of what the pointers report is what transformers' eager attention gives for those heads."""
    _, reader = model()
    batch = batch_of()
    with torch.no_grad():
        scores = reader.read(batch.prompts, batch.read_rows()).scores
        seen = list[torch.Tensor]()
        reader.decoder.config._attn_implementation = "eager"
        hooks = [
            reader.decoder.layers[layer].self_attn.register_forward_hook(lambda *args: seen.append(args[-1][1]))
            for layer, _ in POINTERS
        ]
        try:
            bias = torch.zeros(batch.prompts.mask.shape).masked_fill(~batch.prompts.mask, -1e30)
            reader.read(replace(batch.prompts, mask=bias), batch.read_rows())
        finally:
            reader.decoder.config._attn_implementation = "sdpa"
            for hook in hooks:
                hook.remove()
    for pointer, (_, head) in enumerate(POINTERS):
        ours = scores[pointer].masked_fill(~batch.prompts.mask[:, 0], -torch.inf).softmax(-1)
        torch.testing.assert_close(ours, seen[pointer][:, head].float(), atol=1e-5, rtol=1e-4)

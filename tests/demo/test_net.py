"""Training reads what serving reads: rows, positions, pictures and pruned pictures are transformers' own.

The oracle is transformers' processor and model, untouched, on the shipped checkpoint."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from demo.batches import prune_and_encode
from demo.draws import Sample, draw_sample
from demo.net import Reader, Tower, find_owners, load_model
from demo.prompts import lay_out_clip, make_prompts, see
from demo.pruning import keep_cells
from demo.tokens import Words
from evs.policy import make_policy
from tests.oracle import Clip, load_oracle, prepare_inputs
from tests.reuse_oracle import encode_with_owners
from vision.patches import PatchGrid

MODEL = Path(__file__).parents[2] / "demo" / "model"


@pytest.fixture(scope="module")
def words() -> Words:
    return Words.of_folder(MODEL)


@pytest.fixture(scope="module")
def sample() -> Sample:
    return draw_sample(random.Random(11), "all", 12, (128, 160), is_coded=True)


def test_the_worked_example_of_who_sees_whom() -> None:
    expected = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]
    assert see(torch.tensor([[0, 0, 1000, 1, 2, -1]]))[0].int().tolist() == expected


def test_the_worked_example_of_owners() -> None:
    keep = np.array([[1, 1], [0, 1], [1, 0]], dtype=np.bool_)
    owners = find_owners([keep])
    assert owners.kept.tolist() == [*range(8), *range(12, 16), *range(16, 20)]
    assert owners.rows[::4].tolist() == [0, 4, 0, 8, 12, 8]
    with pytest.raises(ValueError, match="slot 0 must be kept whole"):
        find_owners([keep[1:]])


def test_prompts_are_those_of_transformers(words: Words, sample: Sample) -> None:
    """One question, nothing dropped: ids and positions are the processor's and the model's own."""
    model, processor = load_oracle(MODEL)
    question = sample.questions[0]
    inputs = prepare_inputs(processor, [Clip(frames=sample.frames, fps=2.0), question.text])
    theirs, _ = model.model.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], video_grid_thw=inputs["video_grid_thw"]
    )
    prompts = make_prompts(words, [[question]], [np.ones((6, 20), dtype=np.bool_)], (128, 160))
    clip = len(lay_out_clip(words, np.ones((6, 20), dtype=np.bool_), (4, 5), is_image=False).ids)
    rows = torch.tensor([*range(clip), *range(clip + len(words.assistant), prompts.ids.shape[1])])
    rows = rows[: inputs["input_ids"].shape[1]]
    assert prompts.ids[0, rows].tolist() == inputs["input_ids"][0].tolist()
    assert prompts.positions[:, 0, rows].tolist() == theirs[:, 0].tolist()
    assert prompts.ids[0, prompts.embed[0]] == words.assistant[-1]


@torch.no_grad()
def test_states_are_those_of_transformers(words: Words, sample: Sample) -> None:
    """Seven questions over one encoding predict what each predicts alone, in transformers' forward."""
    model, processor = load_oracle(MODEL)
    trained = load_model(MODEL)
    encoded = Tower(trained).encode(sample.frames[None], None)
    prompts = make_prompts(words, [sample.questions], [np.ones((6, 20), dtype=np.bool_)], (128, 160))
    reader = Reader(trained)
    logits = reader.score(reader.read(prompts, encoded).last)[0]
    firsts = [place for place in range(1, prompts.ids.shape[1]) if is_first_of_answer(prompts.labels[0], place)]
    assert len(firsts) == len(sample.questions)
    for question, place in zip(sample.questions, firsts, strict=True):
        inputs = prepare_inputs(processor, [Clip(frames=sample.frames, fps=2.0), question.text])
        theirs = model(**inputs).logits[0, -1]
        assert float((logits[place - 1] - theirs).abs().max()) < 1e-3 * float(theirs.std())


def is_first_of_answer(labels: torch.Tensor, place: int) -> bool:
    return bool(labels[place] != -100) and bool(labels[place - 1] == -100)


@torch.no_grad()
def test_pruned_pictures_are_those_of_the_oracle(sample: Sample) -> None:
    """`reuse` in training equals transformers' tower with the rows of dropped cells overwritten by their owners'."""
    model, processor = load_oracle(MODEL)
    keep = keep_cells(sample.frames, make_policy("gate"))
    assert 0 < keep.mean() < 0.9
    kept = torch.from_numpy(np.flatnonzero(keep))
    grid = PatchGrid(
        pixels=np.ascontiguousarray(sample.frames.transpose(0, 3, 1, 2)), times_s=tuple(np.arange(12) / 2),
        temporal_patch_size=2, patch_size=16, merge_size=2,
    )  # fmt: skip
    theirs = encode_with_owners(model, processor, grid, keep.repeat(4, axis=1))[:, kept]
    tower = Tower(load_model(MODEL))
    ours = tower.encode(sample.frames[None], find_owners([keep]))
    for mine, other in zip((ours.cells, *ours.planes), theirs, strict=True):
        assert float((mine - other).abs().max()) < 1e-4 * float(other.std())
    whole = tower.encode(sample.frames[None], find_owners([np.ones_like(keep)]))
    assert torch.allclose(whole.cells, tower.encode(sample.frames[None], None).cells, atol=1e-5)


@torch.no_grad()
def test_every_regime_reads_its_own_rows(words: Words) -> None:
    """However a batch is pruned, the decoder is handed one row for each kept cell, of that very cell."""
    rng = random.Random(2)
    samples = [draw_sample(rng, "all", 8, (96, 96), is_coded=False) for _ in range(3)]
    tower = Tower(load_model(MODEL))
    every = tower.encode(np.stack([one.frames for one in samples]), None).cells
    for regime in ("none", "gate", "evs", "random"):
        batch = prune_and_encode(rng, tower, words, samples, regime, uses_reuse=False)  # type: ignore[arg-type]
        assert batch.keep.all() == (regime == "none")
        rows = batch.read_rows().cells
        assert len(rows) == int(batch.prompts.cells.sum()) == batch.keep.sum()
        assert torch.equal(rows, every[torch.from_numpy(np.flatnonzero(batch.keep))])
        reused = prune_and_encode(rng, tower, words, samples, "gate", uses_reuse=True)
        assert len(reused.encoded.cells) == reused.keep.sum() and reused.read_rows() is reused.encoded

"""Law 4: guessed tokens change nothing but speed. An answer has the same tokens, log-probabilities and end whoever
guesses: the proposer of the tests knows the answer and is wrong now and then, or always."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from runner.draft_depth import DraftDepth
from runner.requests import EvsOptions, SamplingParams
from runner.sequence import Sequence, SequenceId
from runner.speculation import NgramProposer, Proposer, Speculation
from tests.checkpoints import BUILDERS
from tests.checkpoints.base import save
from tests.checkpoints.gemma3 import make_gemma3
from tests.checkpoints.paligemma import make_paligemma
from tests.harness import Answer, LocalEngine, local_engine, rebuilt
from tests.oracle import Part, as_message, noise_picture
from tests.runner.test_history import TURN, assert_same

MAX_TOKENS, LONG = 24, 40
WINDOWS = ["sliding_attention"] * 3
GATE = EvsOptions(method="gate", threshold=0.2)


class Replay:
    """Guesses from known answers, by request; each guess is wrong with the probability `wrong`."""

    method = "replay"

    def __init__(self, known: Mapping[str, list[int]], vocab_size: int, *, wrong: float) -> None:
        self._known, self._vocab_size, self._wrong = known, vocab_size, wrong
        self._rng = np.random.default_rng(1)

    def reach(self, sequences: list[Sequence], most: int) -> list[int]:
        return [most] * len(sequences)

    def propose(self, sequences: list[Sequence], depth: int) -> list[tuple[int, ...]]:
        return [self._guess(sequence, depth) for sequence in sequences]

    def forget(self, sequence_id: SequenceId) -> None:
        """It keeps nothing."""

    def _guess(self, sequence: Sequence, depth: int) -> tuple[int, ...]:
        done = len(sequence.output)
        right = self._known.get(sequence.request_id, [])[done : done + depth]
        return tuple((token + (self._rng.random() < self._wrong)) % self._vocab_size for token in right)


class AnyDepth(DraftDepth):
    """Some depth or none, whatever was learned."""

    def __init__(self) -> None:
        super().__init__((1, 2, 4))
        self._rng = np.random.default_rng(0)

    def choose(self, batch: int, guesses: list[tuple[float, int]]) -> int:
        assert batch == len(guesses)
        return min(int(self._rng.choice((0, 1, 2, 3, 4))), max(reach for _, reach in guesses))


def speculate(engine: LocalEngine, proposer: Proposer) -> Speculation:
    engine.engine.speculation = Speculation(proposer, AnyDepth())
    return engine.engine.speculation


def replay(engine: LocalEngine, known: Mapping[str, list[int]], *, wrong: float = 0.25) -> Speculation:
    return speculate(engine, Replay(known, engine.vocab_size, wrong=wrong))


@pytest.fixture(scope="module", params=sorted(BUILDERS))
def loaded(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Iterator[tuple[LocalEngine, Path]]:
    folder = checkpoint(request.param)
    with local_engine(folder) as local:
        yield local, folder


@pytest.fixture(scope="module")
def qwen(checkpoint: Callable[[str], Path]) -> Iterator[tuple[LocalEngine, Path]]:
    folder = checkpoint("qwen3_vl")
    with local_engine(folder) as local:
        yield local, folder


@pytest.mark.parametrize("evs", [None, GATE], ids=["off", "gate"])
def test_greedy_in_a_full_house(loaded: tuple[LocalEngine, Path], evs: EvsOptions | None) -> None:
    """Among others that arrive, with chunks beside decodes and pages so few that somebody is preempted."""
    local, folder = loaded
    alone = local.answer([as_message(TURN)], sampling=local.everything(LONG), evs=evs)
    page_bytes = local.engine.runner.backend.layout.page_bytes
    pages = 2 * -(-(alone.usage.prompt_tokens + 1) // 16) + 1
    least = local.smallest_step([as_message(TURN)], evs)
    engine = rebuilt(local, folder, max_num_batched_tokens=max(60, least), kv_memory_bytes=pages * page_bytes)
    known: dict[str, list[int]] = {}
    speculation = replay(engine, known)
    for _ in range(3):
        name = engine.submit([as_message(TURN)], sampling=engine.everything(LONG), evs=evs)
        known[name] = alone.token_ids
        engine.step()
    engine.run()
    for name in known:
        assert_same(engine.answers[name, 0], alone)
        assert engine.answers[name, 0].finish_reason == "length"
    assert engine.engine.scheduler.events["preemptions"] > 0
    assert 0 < speculation.counters["accepted"] < speculation.counters["drafted"]


CONTROLS: dict[str, SamplingParams] = {
    name: SamplingParams(**{"temperature": 1.1, "max_tokens": MAX_TOKENS, "seed": 5, "ignore_eos": True, **values})
    for name, values in {
        "seeded": {},
        "filtered": {"top_k": 12, "top_p": 0.9, "min_p": 0.01},
        "penalised": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
        "greedy and penalised": {"temperature": 0.0, "frequency_penalty": 1.5},
        "biased": {"logit_bias": {65: 4.0, 66: 4.0}},
        "at least": {"min_tokens": 15, "ignore_eos": False, "stop_token_ids": tuple(range(0, 200, 2))},
        "with log-probabilities": {"top_logprobs": 3},
    }.items()
}  # fmt: skip


@pytest.mark.parametrize("name", CONTROLS)
def test_controls_see_the_tokens_accepted_before_them(qwen: tuple[LocalEngine, Path], name: str) -> None:
    """The same draws, ends and log-probabilities as without guesses, for each control."""
    local, folder = qwen
    alone = local.answer([as_message(TURN)], sampling=CONTROLS[name])
    engine = rebuilt(local, folder)
    known: dict[str, list[int]] = {}
    speculation = replay(engine, known)
    known[engine.submit([as_message(TURN)], sampling=CONTROLS[name])] = alone.token_ids
    engine.run()
    (ours,) = engine.answers.values()
    assert (ours.token_ids, ours.finish_reason) == (alone.token_ids, alone.finish_reason)
    assert len(ours.tops) == len(alone.tops)
    for one, other in zip(ours.tops, alone.tops, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    assert speculation.counters["accepted"] > 0


def test_an_end_inside_a_run_ends_it_there(qwen: tuple[LocalEngine, Path]) -> None:
    """A stop token among accepted ones: nothing of what follows is shown or counted, though all of it was right."""
    local, folder = qwen
    whole = local.answer([as_message(TURN)], sampling=local.everything(MAX_TOKENS)).token_ids
    for place in range(2, 10):
        stop = whole[place]
        if stop in whole[:place]:
            continue
        engine = rebuilt(local, folder)
        known: dict[str, list[int]] = {}
        replay(engine, known, wrong=0.0)
        sampling = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True, stop_token_ids=(stop,))
        name = engine.submit([as_message(TURN)], sampling=sampling)
        known[name] = whole
        engine.run()
        answer = engine.answers[name, 0]
        assert (answer.token_ids, answer.finish_reason) == (whole[:place], "stop")
        assert engine.engine.counters["generation_tokens"] == place + 1


@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_no_answer_is_longer_than_it_may_be(qwen: tuple[LocalEngine, Path], max_tokens: int) -> None:
    """Nor does a step compute a row that no answer could need: the context's bound is a row's, too."""
    local, folder = qwen
    whole = local.answer([as_message(["hi"])], sampling=local.everything(8))
    engine = rebuilt(local, folder, max_model_len=whole.usage.prompt_tokens + max_tokens)
    known: dict[str, list[int]] = {}
    replay(engine, known, wrong=0.0)
    name = engine.submit([as_message(["hi"])], sampling=engine.everything(max_tokens))
    known[name] = whole.token_ids
    rows = 0
    while engine.engine.has_work:
        report = engine.engine.step()
        engine.receive(report.deltas)
        rows = max([rows, *(work.stop for work in report.plan.rows)])
    assert rows <= whole.usage.prompt_tokens + max_tokens - 1
    assert engine.answers[name, 0].token_ids == whole.token_ids[:max_tokens]
    assert engine.answers[name, 0].finish_reason == "length"


def test_guesses_that_are_always_wrong_change_nothing(qwen: tuple[LocalEngine, Path]) -> None:
    local, folder = qwen
    alone = local.answer([as_message(TURN)], sampling=local.everything(MAX_TOKENS))
    engine = rebuilt(local, folder, max_num_seqs=3)
    known: dict[str, list[int]] = {}
    speculation = replay(engine, known, wrong=1.0)
    for _ in range(3):
        known[engine.submit([as_message(TURN)], sampling=engine.everything(MAX_TOKENS))] = alone.token_ids
    engine.run()
    for answer in engine.answers.values():
        assert_same(answer, alone)
    assert speculation.counters["drafted"] > 20
    assert speculation.counters["accepted"] == 0


def test_earlier_text_is_guessed_again(qwen: tuple[LocalEngine, Path]) -> None:
    """N-grams of an answer that repeats itself are accepted, and it takes fewer steps for it."""
    local, folder = qwen
    sampling = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, logit_bias={65: 40.0})
    alone = local.answer([as_message(TURN)], sampling=sampling)
    engine = rebuilt(local, folder)
    speculation = speculate(engine, NgramProposer())
    name = engine.submit([as_message(TURN)], sampling=sampling)
    steps = 0
    while engine.engine.has_work:
        engine.step()
        steps += 1
    assert engine.answers[name, 0].token_ids == alone.token_ids
    assert speculation.counters["accepted"] > 20
    assert steps < 45


GEMMA_2 = {
    "model_type": "gemma2", "num_key_value_heads": 2, "sliding_window": 8, "query_pre_attn_scalar": 20,
    "attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip


@pytest.mark.parametrize("kind", ["windows in all layers", "bounded scores"])
def test_layers_that_see_less(tmp_path: Path, kind: str) -> None:
    """Rows of drafts behind a window whose pages were given back, and rows whose scores are bounded."""
    made = make_paligemma(text=GEMMA_2) if kind == "bounded scores" else make_gemma3(layer_types=WINDOWS)
    save(tmp_path, *made)
    turn: list[Part] = [noise_picture(2, size=(64, 80)), "why?"]
    with local_engine(tmp_path) as local:
        alone = local.answer([as_message(turn)], sampling=local.everything(60))
        engine = rebuilt(local, tmp_path)
        known: dict[str, list[int]] = {}
        speculation = replay(engine, known)
        known[engine.submit([as_message(turn)], sampling=engine.everything(60))] = alone.token_ids
        freed = 0
        while engine.engine.has_work:
            engine.step()
            engine.engine.scheduler.check_integrity()
            freed = max([freed, *(s.num_freed_pages for s in engine.engine.scheduler.running)])
        (ours,) = engine.answers.values()
        assert_same(ours, alone)
        assert speculation.counters["accepted"] > 0
        assert bool(freed) == (kind == "windows in all layers")


def test_aborts_and_failing_steps_leave_nothing(
    qwen: tuple[LocalEngine, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Laws 7 and 8 with drafts in flight: pages balance, and the next answer is as ever."""
    local, folder = qwen
    alone = local.answer([as_message(TURN)], sampling=local.everything(MAX_TOKENS))
    engine = rebuilt(local, folder)
    known: dict[str, list[int]] = {}
    replay(engine, known)
    names = [engine.submit([as_message(TURN)], sampling=engine.everything(MAX_TOKENS)) for _ in range(3)]
    known.update(dict.fromkeys(names, alone.token_ids))
    for _ in range(4):
        engine.step()
    engine.receive(engine.engine.abort(names[0], None))
    engine.engine.scheduler.check_integrity()
    with monkeypatch.context() as broken:
        broken.setattr(engine.engine.runner, "_forward", _fail)
        with pytest.raises(ZeroDivisionError):
            engine.step()
    engine.receive(engine.engine.fail_all("it failed"))
    engine.engine.scheduler.check_integrity()
    assert [engine.answers[name, 0].finish_reason for name in names] == ["abort", "error", "error"]
    last = engine.submit([as_message(TURN)], sampling=engine.everything(MAX_TOKENS))
    known[last] = alone.token_ids
    engine.run()
    assert_same(engine.answers[last, 0], alone)


def _fail(*_: object) -> torch.Tensor:
    raise ZeroDivisionError


def test_an_answer_that_ends_while_its_step_runs_is_forgotten(qwen: tuple[LocalEngine, Path]) -> None:
    """Nothing is learned of its draft, and nothing is kept of it."""
    local, folder = qwen
    alone = local.answer([as_message(TURN)], sampling=local.everything(MAX_TOKENS))
    engine = rebuilt(local, folder)
    known: dict[str, list[int]] = {}
    speculation = replay(engine, known, wrong=0.0)
    name = engine.submit([as_message(TURN)], sampling=engine.everything(MAX_TOKENS))
    known[name] = alone.token_ids
    drafts: tuple[int, ...] = ()
    while not drafts:
        report = engine.engine.step(lambda: end_when_it_drafts(engine, name))
        engine.receive(report.deltas)
        drafts = report.plan.rows[0].draft
    assert engine.answers[name, 0].finish_reason == "abort"
    assert not speculation._rates
    engine.engine.scheduler.check_integrity()


def end_when_it_drafts(engine: LocalEngine, name: str) -> None:
    if engine.engine.speculation._reach:
        engine.receive(engine.engine.abort(name, None))


def test_every_answer_of_a_request_has_its_own_drafts(qwen: tuple[LocalEngine, Path]) -> None:
    """n answers of one prompt, by the seed and each answer's number."""
    local, folder = qwen
    sampling = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, seed=3, logit_bias={65: 9.0, 66: 9.0})
    plain = rebuilt(local, folder)
    plain.submit([as_message(TURN)], sampling=sampling, n=3)
    plain.run()
    engine = rebuilt(local, folder)
    speculation = speculate(engine, NgramProposer())
    engine.submit([as_message(TURN)], sampling=sampling, n=3)
    engine.run()
    assert tokens(engine) == tokens(plain) and len(set(map(tuple, tokens(plain)))) > 1
    assert speculation.counters["accepted"] > 0


def tokens(engine: LocalEngine) -> list[list[int]]:
    found: list[Answer] = [engine.answers[key] for key in sorted(engine.answers)]
    return [answer.token_ids for answer in found]

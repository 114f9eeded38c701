"""What pruning saves the language model, and what a second question about a clip saves.

    python bench/checkpoint.py FOLDER && python bench/pruning.py FOLDER

On the static clip: prefill time with EVS off and with `gate`, beside a text prompt of as many tokens (pruned prompts
must cost what their count says); and the time before prefill (decode, select, encode) for the first question and for
the next. The engine runs in this process, one request at a time. Prints a table for people and one JSON line. Measure
on a quiet machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from runner.assembly import Assembled, assemble  # noqa: E402 - the checkout is put on the path first
from runner.config import EngineConfig  # noqa: E402
from runner.messages import Generate  # noqa: E402
from runner.requests import (  # noqa: E402
    ChatMessage,
    ContentPart,
    EvsMethod,
    EvsOptions,
    MediaPart,
    SamplingParams,
    StoredFile,
    TextPart,
)

REPEATS = 9


@dataclass(frozen=True, kw_only=True)
class Row:
    """Seconds are the best of several repeats; `before_s` is the time before prefill of the first and the next
    question."""

    prompt: str
    tokens: int
    prefill_s: float
    before_first_s: float | None = None
    before_next_s: float | None = None


class Asker:
    """One engine, asked one thing at a time."""

    def __init__(self, assembled: Assembled) -> None:
        self._assembled = assembled
        self._numbers = itertools.count()
        self.cancel = threading.Event()

    def tell_decoded(self, done: int, total: int) -> None:
        """Nobody watches."""

    def finish_selection(self, *_: object) -> None:
        raise NotImplementedError("only methods that choose before the encoder are measured here")

    def ask(self, parts: tuple[ContentPart, ...], method: EvsMethod) -> tuple[int, float, float]:
        """(prompt tokens, seconds of submission, seconds of steps until the first token)."""
        number = next(self._numbers)
        request = Generate(
            request_id=str(number),
            chat=(ChatMessage(role="user", parts=parts),),
            sampling=SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True),
            evs=EvsOptions(method=method),
        )
        started = time.perf_counter()
        sequences, usage = self._assembled.admission.submit(request, number, self)  # type: ignore[arg-type]
        submitted = time.perf_counter()
        self._assembled.engine.add(sequences)
        while self._assembled.engine.has_work:
            self._assembled.engine.step()
        return usage.prompt_tokens, submitted - started, time.perf_counter() - submitted


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Something to ask again and again; its `before_first_s` was measured when it was new."""

    name: str
    parts: tuple[ContentPart, ...]
    method: EvsMethod
    tokens: int
    before_first_s: float | None = None


def first_clip(asker: Asker, clip: Path, method: EvsMethod) -> Prompt:
    """The first question pays for decoding, selecting and encoding; prefill, measured by the second, is taken off."""
    parts: tuple[ContentPart, ...] = (
        MediaPart(kind="video", source=StoredFile(path=str(clip))),
        TextPart(text="Describe."),
    )
    tokens, submit_s, steps_s = asker.ask(parts, method)
    prefill_s = min(asker.ask(parts, method)[2] for _ in range(3))
    before_s = submit_s + steps_s - prefill_s
    return Prompt(name=f"clip, evs {method}", parts=parts, method=method, tokens=tokens, before_first_s=before_s)


def text_of(asker: Asker, tokens: int) -> Prompt:
    """A text prompt of exactly so many tokens: each character of ASCII is one of the checkpoint's."""
    overhead = asker.ask((TextPart(text="a"),), "none")[0] - 1
    text = "".join(chr(ord("a") + number % 26) for number in range(tokens - overhead))
    parts = (TextPart(text=text),)
    found = asker.ask(parts, "none")[0]
    assert found == tokens, (found, tokens)
    return Prompt(name="text", parts=parts, method="none", tokens=tokens)


def measure(asker: Asker, prompts: list[Prompt]) -> list[Row]:
    """All prompts in turn, REPEATS times, so that they meet the same machine; the best of each."""
    found: list[list[tuple[float, float]]] = [[] for _ in prompts]
    for _ in range(REPEATS):
        for prompt, times in zip(prompts, found, strict=True):
            _, submit_s, steps_s = asker.ask(prompt.parts, prompt.method)
            times.append((submit_s, steps_s))
    return [
        Row(
            prompt=prompt.name,
            tokens=prompt.tokens,
            prefill_s=min(steps for _, steps in times),
            before_first_s=prompt.before_first_s,
            before_next_s=None if prompt.before_first_s is None else min(submit for submit, _ in times),
        )
        for prompt, times in zip(prompts, found, strict=True)
    ]


def show(rows: list[Row], ratios: dict[str, float]) -> None:
    table = Table("prompt", "tokens", "prefill s", "before prefill, first s", "next s")
    for row in rows:
        before = [f"{value:.4f}" if value is not None else "" for value in (row.before_first_s, row.before_next_s)]
        table.add_row(row.prompt, str(row.tokens), f"{row.prefill_s:.3f}", *before)
    Console().print(table)
    for name, value in ratios.items():
        Console().print(f"{name}: {value:.3f}")
    print(json.dumps({"rows": [asdict(row) for row in rows], "ratios": ratios}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="what bench/checkpoint.py wrote")
    folder = parser.parse_args().folder
    config = EngineConfig(
        model=str(folder / "model"), served_name="speed", max_num_batched_tokens=4096, prefix_cache_bytes=0
    )
    assembled = assemble(config, lambda _phase, _done, _total: None)
    with assembled.pool:
        asker = Asker(assembled)
        asker.ask((TextPart(text="warm"),), "none")
        pruned = first_clip(asker, folder / "static.mp4", "gate")  # first: the other finds the clip decoded
        dense = first_clip(asker, folder / "static.mp4", "none")
        prompts = [dense, text_of(asker, dense.tokens), pruned, text_of(asker, pruned.tokens)]
        rows = measure(asker, prompts)
    dense_row, _, pruned_row, text_row = rows
    assert pruned_row.before_first_s and pruned_row.before_next_s
    ratios = {
        "pruned prefill over a text of as many tokens": pruned_row.prefill_s / text_row.prefill_s,
        "pruned prefill over dense prefill": pruned_row.prefill_s / dense_row.prefill_s,
        "time before prefill, next question over first": pruned_row.before_next_s / pruned_row.before_first_s,
    }
    show(rows, ratios)


if __name__ == "__main__":
    main()

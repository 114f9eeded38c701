"""What pruning saves the language model, and what a second question about a clip saves.

    python bench/checkpoint.py FOLDER && python bench/pruning.py FOLDER

On the static clip: prefill time with EVS off and with `gate`, beside a text prompt of as many tokens (pruned prompts
must cost what their count says); and the time before prefill (decode, select, encode) for the first question and for
the next. The engine runs in this process, one request at a time. Prints a table for people and one JSON line. Measure
on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.local import LocalAsker  # noqa: E402 - the checkout is put on the path first
from runner.assembly import assemble  # noqa: E402
from runner.config import EngineConfig  # noqa: E402
from runner.requests import ContentPart, EvsMethod, MediaPart, SamplingParams, StoredFile, TextPart  # noqa: E402

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


class Asker(LocalAsker):
    """One engine, asked one thing at a time."""

    def ask(self, parts: tuple[ContentPart, ...], method: EvsMethod) -> tuple[int, float, float]:
        """(prompt tokens, seconds of submission, seconds of steps until the first token)."""
        started = time.perf_counter()
        sequence = self.add(parts, SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True), evs=method)
        submitted = time.perf_counter()
        self.run()
        return len(sequence.prompt), submitted - started, time.perf_counter() - submitted


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

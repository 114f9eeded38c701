"""What is done while the device computes changes nothing of the step: who ends meanwhile gets no more, who comes takes
part from the next one on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import LocalEngine, local_engine
from tests.oracle import as_message


@pytest.fixture(scope="module")
def local(checkpoint: Callable[[str], Path]) -> Iterator[LocalEngine]:
    with local_engine(checkpoint("qwen2_5_vl")) as engine:
        yield engine


def test_aborted_and_added_meanwhile(local: LocalEngine) -> None:
    alone = local.answer([as_message(["the second"])], sampling=local.everything(6)).token_ids
    first = local.submit([as_message(["the first"])], sampling=local.everything(20))
    for _ in range(3):
        local.step()
    had = len(local.answers[first, 0].token_ids)
    added: list[str] = []

    def meanwhile() -> None:
        local.receive(local.engine.abort(first, None))
        added.append(local.submit([as_message(["the second"])], sampling=local.everything(6)))

    report = local.engine.step(meanwhile)
    assert report.deltas == () and len(report.plan.rows) == 1
    assert local.answers[first, 0].finish_reason == "abort" and len(local.answers[first, 0].token_ids) == had
    local.engine.scheduler.check_integrity()
    local.run()
    assert local.answers[added[0], 0].token_ids == alone

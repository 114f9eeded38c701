"""`evs ask`: its usage line. The whole command runs in the end-to-end tests."""

from __future__ import annotations

from app.ask import describe_usage
from runner.messages import PromptUsage
from tests.app.fake_engine import USAGE


def test_usage_line() -> None:
    assert describe_usage(USAGE, 5, 0.5, 1.25).split(" · ") == [
        "7 prompt + 5 answer tokens",
        "2 frames of 2.0 s",
        "4 of 4 cells kept (evs none)",
        "first token 0.50 s, total 1.25 s",
    ]
    assert describe_usage(PromptUsage(prompt_tokens=1), 2, 0, 0).startswith("1 prompt + 2 answer tokens · first")

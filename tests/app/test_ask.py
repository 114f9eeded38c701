"""`evs ask`: its usage line, and the whole command as `make demo` runs it."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from app.ask import describe_usage
from runner.messages import PromptUsage
from tests.app.fake_engine import USAGE
from tests.app.test_cli import run


def test_usage_line() -> None:
    assert describe_usage(USAGE, 5, 0.5, 1.25).split(" · ") == [
        "7 prompt + 5 answer tokens",
        "2 frames of 2.0 s",
        "4 of 4 cells kept (evs none)",
        "first token 0.50 s, total 1.25 s",
    ]
    assert describe_usage(PromptUsage(prompt_tokens=1), 2, 0, 0).startswith("1 prompt + 2 answer tokens · first")


def test_a_question_and_the_picture_of_what_was_kept(tmp_path: Path) -> None:
    """The answer alone goes to stdout; question, tokens and the overlay's path stand on stderr."""
    target = tmp_path / "kept.webp"
    clip = "sample_videos/mover.mp4"
    code, out, err = run("ask", clip, "Which way does the moving object go?", "--overlay", str(target))
    assert (code, out) == (0, "right to left.\n")
    assert "mover.mp4: Which way does the moving object go?" in err
    assert f"{target}: 56 of 160 cells kept (evs gate), 16 frames" in err
    with Image.open(target) as picture:
        assert picture.n_frames == 16


def test_a_picture_that_cannot_be_drawn_is_found_first(tmp_path: Path) -> None:
    """Before the model is loaded."""
    for target, words in ((tmp_path / "kept.gif", ".png or .webp"), (tmp_path / "no" / "kept.png", "does not exist")):
        code, out, err = run("ask", "sample_videos/mover.mp4", "?", "--overlay", str(target))
        assert code != 0 and not out
        assert "--overlay" in err and words in err

"""Progress bars: on a terminal only, one a phase."""

from __future__ import annotations

import io

from rich.console import Console

from app.progress import note_progress, show_loading, show_phases
from runner.messages import Loading, Progress


def draw(console: Console) -> None:
    with show_loading(console) as on_loading:
        on_loading(Loading(phase="weights", done=1, total=4))
    with show_phases(console) as bars:
        note = note_progress(bars)
        note(Progress(request_id="r", phase="decode", done=2, total=0))
        note(Progress(request_id="r", phase="encode", done=2, total=8))


def test_terminal_sees_each_phase() -> None:
    out = io.StringIO()
    draw(Console(file=out, force_terminal=True, width=80))
    assert all(word in out.getvalue() for word in ("load", "weights", "1/4", "decode", "encode", "2/8"))


def test_pipe_sees_nothing() -> None:
    out = io.StringIO()
    draw(Console(file=out))
    assert out.getvalue() == ""

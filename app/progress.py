"""Owns the progress bars of the command line, on stderr, gone when the work is done.

Knows nothing of what the phases do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from runner.messages import Loading
from runner.messages import Progress as RequestProgress


class PhaseBars:
    """One bar a phase, made when the phase is first heard of."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def update(self, phase: str, done: int, total: int) -> None:
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(phase, total=None)
        self._bars.update(self._tasks[phase], completed=done, total=total or None)


@contextmanager
def show_phases(console: Console) -> Iterator[PhaseBars]:
    columns = (SpinnerColumn(), TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn())
    quiet = not console.is_terminal  # a file or a pipe gets no bars
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=quiet) as bars:
        yield PhaseBars(bars)


@contextmanager
def show_loading(console: Console) -> Iterator[Callable[[Loading], None]]:
    with show_phases(console) as bars:
        bars.update("load", 0, 0)
        yield lambda loading: bars.update(loading.phase, loading.done, loading.total)


def note_progress(bars: PhaseBars) -> Callable[[RequestProgress], None]:
    return lambda progress: bars.update(progress.phase, progress.done, progress.total)

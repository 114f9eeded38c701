"""Owns the command `evs`: its subcommands, their words, and how it ends (one line for an error, none for Ctrl-C).

Knows nothing of how an answer is made. The flags of `serve` are the settings themselves (app/settings.py). A command
imports what it needs when it runs: `evs ask` has no use for a web framework, which takes half a second to load.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError

from app.log import configure_logging
from app.look import Look
from app.settings import Settings, load_settings
from app.version import VERSION
from runner.errors import EngineError

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

cli = typer.Typer(
    name="evs",
    help="Serve and ask video-language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_EVS_HELP = "Which cells to look at: none (all), gate, evs, uniform or random."
_PASS_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"evs {VERSION}")
        raise typer.Exit


@cli.callback()
def start(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Serve and ask video-language models."""


@cli.command(context_settings=_PASS_FLAGS)
def serve(context: typer.Context) -> None:
    """Serve MODEL (a folder, a hub id, or demo) over HTTP. `evs serve --help` lists the settings."""
    from app.serve import serve_forever

    settings = _load(context.args)
    configure_logging(settings.log_level)
    asyncio.run(serve_forever(settings))


@cli.command()
def ask(  # noqa: PLR0913 - each is a flag
    clip: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A video file.")],
    prompt: Annotated[str, typer.Argument(help="What to ask about it.")],
    model: Annotated[str, typer.Option(help="A folder, a hub id, or demo.")] = "demo",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, max=2.0, help="0 is the likeliest answer.")] = None,
    fps: Annotated[float | None, typer.Option(min=0.001, help="Frames looked at per second.")] = None,
    max_frames: Annotated[int | None, typer.Option(min=1, help="Frames looked at in all.")] = None,
    evs: Annotated[str | None, typer.Option(help=_EVS_HELP)] = None,
    evs_rate: Annotated[float | None, typer.Option(min=0.0, max=0.999, help="Share of cells to drop.")] = None,
    overlay: Annotated[Path | None, typer.Option(help="Draw what was kept, too: a .png or .webp.")] = None,
) -> None:
    """Ask PROMPT about CLIP, in this process."""
    from app.ask import AskOptions, ask_once

    settings = _load(None, model=model)
    configure_logging("warning")
    options = AskOptions(
        clip=clip,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        look=Look(fps=fps, max_frames=max_frames, method=evs, rate=evs_rate),
        overlay=overlay,
    )
    _run_here(ask_once(settings, options))


@cli.command()
def overlay(
    clip: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A video file.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to: .png (a sheet) or .webp (animated).")],
    model: Annotated[str, typer.Option(help="Whose frames and cells: a folder, a hub id, or demo.")] = "demo",
    fps: Annotated[float | None, typer.Option(min=0.001, help="Frames looked at per second.")] = None,
    max_frames: Annotated[int | None, typer.Option(min=1, help="Frames looked at in all.")] = None,
    evs: Annotated[str | None, typer.Option(help=_EVS_HELP)] = None,
    evs_rate: Annotated[float | None, typer.Option(min=0.0, max=0.999, help="Share of cells to drop.")] = None,
) -> None:
    """Draw which cells of CLIP are kept, the dropped ones dimmed."""
    from app.overlay import draw_once

    settings = _load(None, model=model)
    configure_logging("warning")
    _run_here(draw_once(settings, clip, output, Look(fps=fps, max_frames=max_frames, method=evs, rate=evs_rate)))


@cli.command()
def advise(
    clip: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A video file like yours.")],
    model: Annotated[str, typer.Option(help="A folder, a hub id, or demo.")] = "demo",
    fps: Annotated[float | None, typer.Option(min=0.001, help="Frames looked at per second.")] = None,
    max_frames: Annotated[int | None, typer.Option(min=1, help="Frames looked at in all.")] = None,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="How often each way is measured.")] = 5,
) -> None:
    """Measure CLIP with EVS off, with `gate` and `evs` and in each encoder mode, and say what pays here."""
    from app.advise import advise_once

    settings = _load(None, model=model)
    configure_logging("warning")
    _run_here(advise_once(settings, clip, Look(fps=fps, max_frames=max_frames), rounds=rounds))


@cli.command()
def embed(  # noqa: PLR0913 - each is a flag
    clip: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A video file.")],
    model: Annotated[str, typer.Option(help="A folder, a hub id, or demo.")] = "demo",
    window: Annotated[float | None, typer.Option(min=0.001, help="Seconds of a window.")] = None,
    stride: Annotated[float | None, typer.Option(min=0.001, help="Seconds from one window to the next.")] = None,
    find: Annotated[str | None, typer.Option(help="Score each window by its likeness to this text.")] = None,
    dimensions: Annotated[int | None, typer.Option(min=1, help="Numbers of a vector.")] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="One JSON object a line, with whole vectors.")] = False,
    fps: Annotated[float | None, typer.Option(min=0.001, help="Frames looked at per second.")] = None,
    max_frames: Annotated[int | None, typer.Option(min=1, help="Frames looked at in a window.")] = None,
    evs: Annotated[str | None, typer.Option(help="Which cells to look at: none (all) or gate.")] = None,
) -> None:
    """A vector for each window of CLIP, in this process."""
    from app.embed import EmbedOptions, embed_once

    settings = _load(None, model=model)
    configure_logging("warning")
    options = EmbedOptions(
        clip=clip,
        look=Look(fps=fps, max_frames=max_frames, method=evs),
        window_s=window,
        stride_s=stride,
        find=find,
        dimensions=dimensions,
        form="jsonl" if jsonl else "table",
    )
    _run_here(embed_once(settings, options))


@cli.command()
def doctor(
    model: Annotated[str | None, typer.Argument(help="A folder, a hub id, or demo: which adapter it gets.")] = None,
) -> None:
    """Show what this machine has: cores, memory, device, decoders, attention backends; or how MODEL would be served."""
    from app.doctor import show_doctor

    show_doctor(model)


def _run_here(work: Coroutine[Any, Any, None]) -> None:
    """Run with the engine in this process. Its threads cannot be stopped from outside, so Ctrl-C ends the process as it
    stands; decoding children end with it, and nothing else was begun."""
    signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(EXIT_INTERRUPTED))
    asyncio.run(work)


def main() -> None:
    """The entry point. Ctrl-C is not an error worth a traceback, and neither is a wrong path."""
    try:
        cli()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except (EngineError, OSError) as error:
        _fail(str(error), EXIT_ERROR)


def _load(args: list[str] | None, **given: str) -> Settings:
    try:
        return load_settings(args, **given)
    except (OSError, SettingsError) as error:
        _fail(str(error), EXIT_USAGE)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        flag = "".join(f"--{str(step).replace('_', '-')}: " for step in first["loc"][:1])
        _fail(flag + first["msg"].removeprefix("Value error, "), EXIT_USAGE)
    except ValueError as error:  # the settings file is not TOML
        _fail(f"--config: {error}", EXIT_USAGE)


def _fail(message: str, code: int) -> NoReturn:
    print(f"evs: {message}", file=sys.stderr)
    sys.exit(code)

"""The command line: help, version, one-line errors, and an end without a traceback on Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.version import VERSION
from tests.processes import children_of, wait_until

ROOT = Path(__file__).parents[2]


def heed_interrupts() -> None:
    """What a shell starts in the background ignores SIGINT, and hands that down: to these tests, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*args: str, **options) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from app.cli import main; main()", *args]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
        **options,
    )


def run(*args: str) -> tuple[int, str, str]:
    process = start(*args)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_version_and_help() -> None:
    assert run("--version") == (0, f"evs {VERSION}\n", "")
    code, out, _ = run("serve", "--help")
    assert code == 0
    assert "--max-model-len" in out and "--allowed-local-media-path" in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["serve", "demo", "--port", "abc"], "--port"),
        (["serve", "demo", "--bogus"], "--bogus"),
        (["serve", "demo", "--config", "/no/such/file.toml"], "no/such/file"),
        (["serve", "demo", "--config", "pyproject.toml"], "--build-system"),
        (["serve", "demo", "--allowed-media-domains", "https://a.b"], "is not a host"),
        (["serve", "demo", "--host", "256.1.1.1"], "cannot listen"),
        (["ask", "/no/such/clip.mp4", "what?"], "clip"),
    ],
)
def test_errors_are_a_line_that_says_what(args: list[str], words: str) -> None:
    code, _, err = run(*args)
    assert code != 0
    assert words in err
    assert "Traceback" not in err


def test_web_process_stays_small() -> None:
    """Importing everything the server imports brings in no tensors and no codecs."""
    heavy = "torch numpy av transformers"
    found = f"sorted(sys.modules.keys() & set({heavy.split()}))"
    code = f"import sys, app.cli, app.serve, app.server, app.ask, app.doctor; print({found})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_interrupt_while_loading_leaves_quietly(tmp_path: Path) -> None:
    """Ctrl-C before the port is open."""
    script = """if True:
        import asyncio, app.serve, app.cli
        async def load(*args, **options):
            print("loading", flush=True)
            await asyncio.sleep(60)
        app.serve.start_engine = load
        app.cli.main()
    """
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", script, "serve", "demo", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True, preexec_fn=heed_interrupts
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command", [["ask", "README.md", "hi"], ["overlay", "README.md", "-o", "x.png"], ["advise", "README.md"]]
)
def test_a_model_that_is_not_there_is_one_line(command: list[str]) -> None:
    """Also while the decoding processes are still starting."""
    done = subprocess.run(
        [sys.executable, "-c", "import app.cli; app.cli.main()", *command, "--model", "./nosuch"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "neither a folder that exists nor a hub id" in done.stderr


def test_interrupt_while_an_engine_runs_here_leaves_quietly() -> None:
    """Ctrl-C while the model loads in this process: at once, without a word from its threads."""
    command = [sys.executable, "-c", "import app.cli; app.cli.main()", "ask", "sample_videos/mover.mp4", "hi"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )
    assert process.stderr is not None
    process.stderr.readline()  # the note about the demo model: the command is under way
    wait_until(lambda: bool(children_of(process.pid)), what="the decoding server, which starts while the model loads")
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "terminate" not in err

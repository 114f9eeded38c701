"""Peers do the same work: the pipe carries what was asked, the older form of the checkpoint means the same, and who is
not there is said."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoProcessor

from bench.checkpoint import fresh_clips
from bench.client import Timing
from bench.compare import Round, check_lengths
from bench.export import OLDER, write_older_layout
from bench.peers import add_flags, find_engines
from bench.pipe import run_peer
from tests.checkpoints.bench_load import write_tiny_load

pytestmark = pytest.mark.filterwarnings("ignore")  # saving draws a progress bar over threads that are none of ours


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("load")
    write_tiny_load(made / "model")
    return made


def options(folder: Path, *flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    add_flags(parser)
    return parser.parse_args([str(folder), *flags])


def test_a_peer_is_asked_over_its_pipe(folder: Path) -> None:
    """Two clips of one question are one batch: as many answers, of as many tokens as were asked for, about the prompt
    that this engine counts too."""
    with run_peer(sys.executable, "bench.transformers_peer", str(folder)) as session, fresh_clips([0, 1]) as clips:
        timings = session.ask(clips, 3)
        again = session.ask(clips[:1], 2)
    assert session.start_s is not None and session.start_s > 0
    assert [(t.prompt_tokens, t.completion_tokens, len(t.pieces_s)) for t in timings] == [(1182, 3, 3)] * 2
    assert [t.completion_tokens for t in again] == [2]
    assert all(t.first_token_s > 0 and t.per_token_s > 0 for t in timings)


def test_a_peer_that_does_not_start_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="did not start"), run_peer(sys.executable, "bench.no_such_peer"):
        pass


def test_the_older_form_means_the_same(folder: Path) -> None:
    """transformers reads both; written twice it is the same."""
    for _ in range(2):
        write_older_layout(folder / "model", folder / OLDER)
    new, old = (AutoConfig.from_pretrained(folder / name) for name in ("model", OLDER))
    assert old.text_config.rope_parameters["mrope_section"] == [2, 3, 3]
    assert old.text_config.rope_parameters["rope_theta"] == new.text_config.rope_parameters["rope_theta"]
    for part in ("text_config", "vision_config"):
        read = [{**getattr(config, part).to_dict(), "rope_parameters": None} for config in (old, new)]
        assert read[0] == read[1]
    processors = [AutoProcessor.from_pretrained(folder / name) for name in ("model", OLDER)]
    assert processors[0].video_processor.to_dict() == processors[1].video_processor.to_dict()
    assert processors[0].chat_template == processors[1].chat_template
    assert (folder / OLDER / "model.safetensors").samefile(folder / "model" / "model.safetensors")


def test_who_is_absent_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(find_engines(options(folder))) == ["evs (none)", "transformers"]
    assert "not measured, for no flag says where it is: openvino, vllm, llama" in capsys.readouterr().out
    flags = ["--evs", "none", "--evs", "gate", "--vllm", "/x/bin/python", "--without", "transformers"]
    assert list(find_engines(options(folder, *flags))) == ["evs (none)", "evs (gate)", "vllm"]


@pytest.mark.parametrize("flag", ["--openvino", "--llama"])
def test_a_peer_whose_form_was_not_made_is_refused(folder: Path, flag: str) -> None:
    with pytest.raises(SystemExit, match=r"bench\.export"):
        find_engines(options(folder, flag, "somewhere"))


def test_answers_of_another_length_are_other_work() -> None:
    full, short = (
        Timing(asked_s=0.0, pieces_s=(1.0,) * count, prompt_tokens=1, completion_tokens=count) for count in (4, 3)
    )
    check_lengths("a", [Round(alone=full, together=(full, full))], 4)
    with pytest.raises(RuntimeError, match=r"a wrote answers of \[3, 4\] tokens"):
        check_lengths("a", [Round(alone=full, together=(full, short))], 4)

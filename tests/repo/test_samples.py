"""What ships beside the code: the clips are what their README says, and the demo model is whole."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import av
import pytest
from safetensors import safe_open

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_videos"
MODEL = ROOT / "demo" / "model"


@pytest.mark.parametrize(
    ("name", "codec", "size", "frames"),
    [
        ("mover.mp4", "h264", (160, 128), 16),
        ("appears.mp4", "h264", (160, 128), 16),
        *((f"{name}.mp4", "h264", (160, 128), 16) for name in ("passes", "turns", "fade", "cut", "pan")),
        ("screencast.webm", "vp8", (1024, 768), 557),
        ("bunny.mp4", "h264", (1280, 720), 132),
        ("dog_phone.mp4", "h264", (1920, 1080), 41),
    ],
)
def test_clip_is_what_its_table_says(name: str, codec: str, size: tuple[int, int], frames: int) -> None:
    """Codec, size and number of pictures of each clip, counted from its packets."""
    with av.open(str(SAMPLES / name)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, (stream.width, stream.height)) == (codec, size)
        assert sum(packet.size > 0 for packet in container.demux(stream)) == frames


def test_every_clip_has_its_licence_line() -> None:
    """No clip lies there without a row that names where it is from."""
    readme = (SAMPLES / "README.md").read_text()
    clips = [path.name for path in SAMPLES.iterdir() if path.suffix in {".mp4", ".webm"}]
    assert [name for name in clips if f"`{name}`" not in readme] == []


def test_answers_belong_to_clips() -> None:
    """Every clip with known answers is there."""
    answers = json.loads((SAMPLES / "answers.json").read_text())
    assert all((SAMPLES / clip).is_file() and questions for clip, questions in answers.items())


def test_demo_model_has_the_weights_its_card_counts() -> None:
    """8,681,792 parameters in bf16, as demo/README.md says."""
    with safe_open(MODEL / "model.safetensors", framework="np") as weights:
        shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118 - not a dict
        kinds = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118 - not a dict
    assert (sum(map(prod, shapes)), kinds) == (8_681_792, {"BF16"})

"""The container files: CPU by default, closed to the network unless opened, and understood by compose itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """docker-compose.yml with its anchors resolved."""
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_default_service_serves_the_demo_on_cpu(compose: dict[str, Any]) -> None:
    """`docker compose up` needs no GPU and no download of a model."""
    plain = [name for name, service in compose["services"].items() if "profiles" not in service]
    assert plain == ["evs"]
    service = compose["services"]["evs"]
    assert service["command"] == ["${EVS_MODEL:-demo}"]
    assert "deploy" not in service
    assert service["build"] == "."
    assert re.search(r"^ARG TORCH_INDEX=\S+/cpu$", (ROOT / "Dockerfile").read_text(), re.M)


def test_gpu_profile_reserves_an_nvidia_device(compose: dict[str, Any]) -> None:
    """The profile `gpu` takes a device and the CUDA wheels."""
    service = compose["services"]["evs-gpu"]
    assert service["profiles"] == ["gpu"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert service["build"]["args"] == {"TORCH_INDEX": "", "EXTRAS": "[cuda]"}
    assert service["environment"]["EVS_DEVICE"] == "cuda"


@pytest.mark.parametrize("name", ["evs", "evs-gpu"])
def test_service_is_private_and_watched(compose: dict[str, Any], name: str) -> None:
    """Reachable from this host only, restarted when it ends, checked through /health, models kept in a volume."""
    service = compose["services"][name]
    assert all(port.startswith("${HOST_ADDRESS:-127.0.0.1}:") for port in service["ports"])
    assert service["restart"] == "unless-stopped"
    assert "/health" in service["healthcheck"]["test"][-1]
    assert "models:/models" in service["volumes"]
    assert "models" in compose["volumes"]


def test_image_runs_as_a_plain_user() -> None:
    """The server in the image is not root, and the image says how to check its health."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER evs"]
    assert any(line.startswith("HEALTHCHECK ") for line in lines)
    assert 'ENTRYPOINT ["evs", "serve"]' in lines


@pytest.mark.parametrize("profile", [[], ["--profile", "gpu"]])
def test_compose_accepts_the_file(profile: list[str]) -> None:
    """Compose's own reader finds nothing wrong, with and without the profile."""
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not installed")
    result = subprocess.run(
        ["docker-compose", *profile, "config", "-q"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr

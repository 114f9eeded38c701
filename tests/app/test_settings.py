"""Settings: flags over environment over file; sizes for people; what cannot be honoured is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from app.settings import Settings, load_settings, parse_size
from runner.config import DecodeLimits, EngineConfig, EvsServing, Speculating


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1 << 20),
        ("2GiB", 2 << 30),
        ("2gib", 2 << 30),
        ("2 GiB", 2 << 30),
        ("1.5Gi", 3 << 29),
        ("512MB", 512_000_000),
        ("512m", 512_000_000),
        ("10B", 10),
        (7, 7),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["GiB", "2iB", "2XB", "-1GiB", "two", "0"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValidationError):
        load_settings(["demo", f"--kv-memory={text}"])


def test_flags_beat_environment_beats_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "evs.toml"
    file.write_text('port = 1\nhost = "file"\nmax-num-seqs = 3\napi_key = ["a", "b"]\n')
    monkeypatch.setenv("EVS_PORT", "2")
    monkeypatch.setenv("EVS_HOST", "environment")
    settings = load_settings(["demo", "--config", str(file), "--port", "3"])
    assert (settings.port, settings.host, settings.max_num_seqs) == (3, "environment", 3)
    assert settings.api_key == ["a", "b"]


def test_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "server.env"
    file.write_text("EVS_PORT=4\nkv_memory=1GiB\nEVS_API_KEY=a,b\n")
    monkeypatch.setenv("EVS_CONFIG", str(file))
    settings = load_settings(["demo"])
    assert (settings.port, settings.kv_memory, settings.api_key) == (4, 1 << 30, ["a", "b"])


def test_lists_come_as_repeated_flags_or_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(["demo", "--api-key", "a", "--api-key", "b"]).api_key == ["a", "b"]
    monkeypatch.setenv("EVS_API_KEY", "a, b,")
    assert load_settings(["demo"]).api_key == ["a", "b"]


@pytest.mark.parametrize("line", ["bogus = 1", "evs_port = 1", "[server]\nport = 1"])
def test_unknown_settings_in_a_file_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "evs.toml").write_text(line)
    with pytest.raises(ValidationError):
        load_settings(["demo", f"--config={tmp_path / 'evs.toml'}"])


def test_keys_are_not_printed() -> None:
    assert "secret" not in repr(load_settings(["demo", "--api-key", "secret"]))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--allowed-media-domains", "https://example.com"], "is not a host"),
        (["--max-num-batched-tokens", "8", "--max-num-seqs", "9"], "must be at least"),
        (["--allowed-local-media-path", "/no/such/folder"], "not a folder"),
        (["--port", "70000"], "65535"),
        (["--dtype", "int3"], "float32"),
        (["--speculative-method", "draft"], "needs --speculative-model"),
        (["--speculative-model", "small"], "no other method has one"),
    ],
)
def test_what_cannot_be_honoured_is_refused(args: list[str], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        load_settings(["demo", *args])


def test_engine_config_has_every_setting(tmp_path: Path) -> None:
    """Each field of the engine's configuration can be set, and arrives."""
    flags = {
        "served-model-name": ("served_name", "name"),
        "revision": ("revision", "r"),
        "device": ("device", "cpu"),
        "dtype": ("dtype", "float32"),
        "threads": ("threads", 3),
        "max-model-len": ("max_model_len", 99),
        "max-num-seqs": ("max_num_seqs", 5),
        "max-num-batched-tokens": ("max_num_batched_tokens", 77),
        "max-waiting": ("max_waiting", 6),
        "page-size": ("page_size", 8),
        "kv-memory": ("kv_memory_bytes", 1000),
        "encoder-cache": ("encoder_cache_bytes", 2000),
        "max-encoder-patches": ("max_encoder_patches", 11),
        "max-encoder-patches-decoding": ("max_encoder_patches_decoding", 12),
        "limit-media-items": ("max_media_items", 2),
        "realtime-max-sessions": ("max_streams", 7),
        "attention-backend": ("attention_backend", "flashinfer"),
        "kv-cache-dtype": ("kv_cache_dtype", "fp8"),
        "graphs": ("graphs", "never"),
        "log-level": ("log_level", "warning"),
        "prefix-cache": ("prefix_cache_bytes", 4000),
        "media-cache": ("media_cache_bytes", 3000),
        "engine-silence-s": ("silence_s", 9.0),
        "seed": ("seed", 4),
    }
    limits = {
        "max-upload": ("max_bytes", 10),
        "max-pixels-per-frame": ("max_pixels_per_frame", 20),
        "max-frames": ("max_frames", 30),
        "max-duration-s": ("max_duration_s", 40.0),
        "decode-timeout-s": ("decode_timeout_s", 50.0),
        "decode-workers": ("workers", 1),
        "decode-backend": ("backend", "decord"),
    }
    args = [word for flag, (_, value) in (flags | limits).items() for word in (f"--{flag}", str(value))]
    config = load_settings(["model-id", *args]).to_engine_config()
    assert {name: getattr(config, name) for name, _ in flags.values()} == dict(flags.values())
    assert {name: getattr(config.decode, name) for name, _ in limits.values()} == dict(limits.values())
    assert set(EngineConfig.__struct_fields__) - {name for name, _ in flags.values()} == {
        "model", "decode", "evs", "speculating",
    }  # fmt: skip


def test_flags_of_speculation_reach_the_engine() -> None:
    """A server guesses by n-grams unless it is told not to."""
    assert load_settings(["m"]).to_engine_config().speculating == Speculating(method="ngram", max_tokens=8)
    args = ["--speculative-method", "draft", "--speculative-model", "small"]
    assert load_settings(["m", *args]).to_engine_config().speculating == Speculating(method="draft", model="small")
    args = ["--speculative-method", "none", "--num-speculative-tokens", "3"]
    assert load_settings(["m", *args]).to_engine_config().speculating == Speculating(method="none", max_tokens=3)


def test_every_flag_of_evs_reaches_the_engine() -> None:
    flags = {"evs": "uniform", "evs-rate": 0.5, "evs-threshold": 0.1, "evs-refresh": 7, "evs-encoder": "skip"}
    limits = {"evs-max-rate": 0.6, "evs-max-threshold": 0.2, "evs-max-refresh": 9}
    args = [word for flag, value in (flags | limits).items() for word in (f"--{flag}", str(value))]
    wanted = EvsServing(
        method="uniform", rate=0.5, threshold=0.1, refresh=7, encoder="skip", max_rate=0.6, max_threshold=0.2,
        max_refresh=9,
    )  # fmt: skip
    assert load_settings(["m", *args]).to_engine_config().evs == wanted


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compose file or a shell writes what is left out."""
    monkeypatch.setenv("EVS_MAX_MODEL_LEN", "")
    assert load_settings(["m"]).max_model_len is None


def test_defaults_are_the_engines_own() -> None:
    """Where both have a default they agree, so `evs serve` and a test's engine are the same; but a server prunes, and
    guesses."""
    config = load_settings(["m"]).to_engine_config()
    ours = {"evs": EvsServing(method="gate"), "speculating": Speculating(method="ngram")}
    assert config == EngineConfig(model="m", served_name="m", decode=DecodeLimits(), **ours)


def test_a_folder_is_served_under_its_last_name(tmp_path: Path) -> None:
    (tmp_path / "Tiny-VL").mkdir()
    assert load_settings([str(tmp_path / "Tiny-VL")]).model_names == ("Tiny-VL",)
    assert load_settings(["Org/Model"]).model_names == ("Org/Model",)
    assert load_settings(["x", "--served-model-name", "a", "--served-model-name", "b"]).model_names == ("a", "b")


def test_every_setting_is_described() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []

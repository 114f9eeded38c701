"""What `evs doctor` shows, also of a broken installation."""

from __future__ import annotations

from app import doctor


def test_host() -> None:
    facts = doctor.describe_host()
    assert {"evs", "python", "cores", "memory"} <= facts.keys()


def test_a_broken_engine_room_is_a_line(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_DESCRIBE", "raise ImportError('libcudart is missing')")
    assert doctor.describe_engine() == {"engine": "cannot be loaded: ImportError: libcudart is missing"}
    monkeypatch.setattr(doctor, "_DESCRIBE", "print('a warning'); print('{\"torch\": \"2\"}')")
    assert doctor.describe_engine() == {"torch": "2"}
    monkeypatch.setattr(doctor, "_DESCRIBE", "import time; time.sleep(9)")
    monkeypatch.setattr(doctor, "TIMEOUT_S", 0.1)
    assert doctor.describe_engine() == {"engine": "no answer within 0.1 s"}


def test_a_model_is_described_by_its_config_alone() -> None:
    facts = doctor.describe_model("demo")
    assert (facts["adapter"], facts["why"]) == ("qwen3_vl", "qwen3_vl has an adapter of its own")


def test_values_are_spelled_for_people() -> None:
    assert doctor.spell({"a": [1, 2], "b": True}) == "a 1, 2, b yes"

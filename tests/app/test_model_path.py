"""`demo` is a folder, wherever the project was installed; every other name is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import model_path


def test_other_names_are_left_alone() -> None:
    assert model_path.resolve_model("Org/Model") == "Org/Model"
    assert model_path.resolve_model("./demo") == "./demo"


def test_demo_in_a_checkout_and_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (Path(model_path.resolve_model("demo")) / "config.json").is_file()
    monkeypatch.setattr(model_path, "__file__", str(tmp_path / "site-packages" / "app" / "model_path.py"))
    monkeypatch.setattr(model_path.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(FileNotFoundError):
        model_path.resolve_model("demo")
    installed = tmp_path / "share" / "evserve" / "demo" / "model"
    installed.mkdir(parents=True)
    (installed / "config.json").write_text("{}")
    assert model_path.resolve_model("demo") == str(installed)

"""What a policy may hold, and that its key tells it from every other."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from evs.policy import ENCODERS, EVS_VERSION, MEANINGFUL, EvsPolicy, make_policy


def test_gate_has_the_published_defaults() -> None:
    policy = make_policy("gate")
    assert (policy.threshold, policy.refresh, policy.scene_cut, policy.floor) == (3 / 255, 32, 0.6, 1)
    assert (policy.rate, policy.encoder, policy.seed) == (None, "reuse", None)


def test_a_method_holds_only_what_it_reads() -> None:
    assert make_policy("none") == EvsPolicy(method="none", encoder="full")
    assert make_policy("evs", rate=0.5) == EvsPolicy(method="evs", encoder="full", rate=0.5)
    assert make_policy("random", rate=0.5) == EvsPolicy(method="random", encoder="full", rate=0.5, seed=0)


@pytest.mark.parametrize("rate", [-0.1, 1, 1.5, float("nan"), float("inf"), "a", True])
@pytest.mark.parametrize("method", ["gate", "evs", "uniform", "random"])
def test_rates_out_of_bounds_are_refused(method: Any, rate: Any) -> None:
    """With the value in the message."""
    with pytest.raises(ValueError, match=f"rate .*got .*{rate}"):
        make_policy(method, rate=rate)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threshold": -0.01}, "threshold must be between 0 and 1, got -0.01"),
        ({"threshold": 3}, "threshold must be between 0 and 1, got 3"),
        ({"threshold": float("nan")}, "threshold must be between 0 and 1, got nan"),
        ({"scene_cut": 1.5}, "scene_cut must be between 0 and 1, got 1.5"),
        ({"refresh": 0}, "refresh must be at least 1 and below 2\\*\\*64, got 0"),
        ({"refresh": 2.5}, "refresh must be an integer, got 2.5"),
        ({"refresh": True}, "refresh must be an integer, got True"),
        ({"floor": 0}, "floor must be at least 1"),
        ({"seed": 3}, "seed=3 means nothing with method 'gate'; \\['random'\\] read it"),
        ({"encoder": "half"}, "encoder of method 'gate' must be one of .*, got 'half'"),
    ],
)
def test_bad_values_are_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy("gate", **given)


@pytest.mark.parametrize("method", sorted(MEANINGFUL))
def test_nothing_is_silently_ignored(method: Any) -> None:
    """A field that a method does not read is refused by name, and an encoder it cannot run with too."""
    values: dict[str, Any] = {"rate": 0.5, "threshold": 0.1, "refresh": 4, "scene_cut": 0.5, "floor": 2, "seed": 1}
    needed = {"rate": 0.5} if "rate" in MEANINGFUL[method] else {}
    for name in values.keys() - MEANINGFUL[method]:
        with pytest.raises(ValueError, match=f"{name}=.* means nothing with method '{method}'"):
            make_policy(method, **{**needed, name: values[name]})
    for encoder in {"full", "skip", "reuse"} - set(ENCODERS[method]):
        with pytest.raises(ValueError, match=f"got '{encoder}'"):
            make_policy(method, **{**needed, "encoder": encoder})


@pytest.mark.parametrize("method", ["evs", "uniform", "random"])
def test_a_count_needs_a_rate(method: Any) -> None:
    with pytest.raises(ValueError, match=f"method '{method}' needs a value for rate"):
        make_policy(method)


def test_an_unknown_method_is_refused() -> None:
    unknown: Any = "gates"
    with pytest.raises(ValueError, match=r"method must be one of .*, got 'gates'"):
        make_policy(unknown)


def test_policies_that_differ_have_keys_that_differ() -> None:
    """Law 6: every field is in the key by its name, and so is the version."""
    base = make_policy("gate", rate=0.5)
    others: dict[str, Any] = {
        "rate": 0.25, "threshold": 0.1, "refresh": 4, "scene_cut": 0.5, "floor": 2, "encoder": "full",
    }  # fmt: skip
    keys = {base.key(), *(replace(base, **{name: value}).key() for name, value in others.items())}
    assert len(keys) == 1 + len(others)
    assert base.key()[0] == ("evs", EVS_VERSION)
    assert {name for name, _ in base.key()} == {"evs", *(field.name for field in fields(EvsPolicy))}
    assert base.key() == make_policy("gate", rate=0.5).key()

"""Only bfloat16 on a CPU is arranged, in the form that a measurement says is fastest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from runner import linear_forms
from runner.linear_forms import FORMS, PROBES, Form, Forms, arrange_linears, choose_forms, probe_forms

FOUND = probe_forms()


def make_linear(dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    return nn.Linear(48, 80, dtype=dtype)


@pytest.mark.parametrize("form", list(FOUND))
def test_bfloat16_is_swapped_and_nothing_else(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that the embedding shares stays, and is shared where the form keeps weights as they are."""
    monkeypatch.setattr(linear_forms, "best_forms", lambda: Forms(layers=form, head=form))
    shared = nn.Embedding(80, 48, dtype=torch.bfloat16)
    tied = nn.Linear(48, 80, bias=False, dtype=torch.bfloat16)
    tied.weight = shared.weight
    model = nn.ModuleDict(
        {
            "low": make_linear(),
            "full": make_linear(torch.float32),
            "deep": nn.Sequential(nn.LayerNorm(4), make_linear()),
            "embedding": shared,
            "head": tied,
        }
    )
    threads, before = torch.get_num_threads(), shared.weight.detach().clone()
    assert arrange_linears(model) == 3
    assert torch.get_num_threads() == threads
    assert isinstance(model["low"], FORMS[form]) and isinstance(model["head"], FORMS[form])
    assert isinstance(model["full"], nn.Linear)
    assert torch.equal(model["embedding"].weight, before)
    assert not isinstance(model["head"], linear_forms.ColumnLinear) or model["head"].weight is shared.weight
    assert arrange_linears(model) == 0


def test_what_does_not_pay_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_forms, "best_forms", lambda: Forms(layers="plain", head="plain"))
    model = nn.Sequential(make_linear())
    assert arrange_linears(model) == 0
    assert isinstance(model[0], nn.Linear)


class _WithHead(nn.Module):
    """Says which of its layers is the head, as transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = make_linear(), make_linear()

    def get_output_embeddings(self) -> nn.Module:
        return self.head


@pytest.mark.skipif("packed" not in FOUND, reason="torch has no packed products on this CPU")
def test_a_head_has_a_form_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_forms, "best_forms", lambda: Forms(layers="packed", head="columns"))
    model = _WithHead()
    assert arrange_linears(model) == 2
    assert isinstance(model.inner, FORMS["packed"]) and isinstance(model.head, FORMS["columns"])


@pytest.mark.parametrize(
    ("ratios", "forms"),
    [
        ({"packed": {1: 0.6, 512: 0.9}, "columns": {1: 0.65, 512: 1.05}}, ("packed", "columns")),
        ({"packed": {1: 0.6, 512: 0.9}, "columns": {1: 0.95, 512: 1.05}}, ("packed", "packed")),
        ({"packed": {1: 0.9, 512: 1.2}, "columns": {1: 0.8, 512: 1.0}}, ("columns", "columns")),
        ({"packed": {1: 1.2, 512: 0.9}, "columns": {1: 1.1, 512: 1.0}}, ("plain", "plain")),
        ({"columns": {1: 0.5, 512: 1.2}}, ("columns", "columns")),
        ({}, ("plain", "plain")),
    ],
)
def test_a_second_copy_must_gain_a_half(ratios: dict[Form, dict[int, float]], forms: tuple[Form, Form]) -> None:
    """Means over the numbers of rows decide, for a head over few ones."""
    assert choose_forms(ratios) == Forms(layers=forms[0], head=forms[1])


def test_the_probe_measures_decode_and_prefill() -> None:
    assert "columns" in FOUND
    assert all(list(by_rows) == [rows for rows, _ in PROBES] for by_rows in FOUND.values())


def test_missing_operators_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: nn.Linear) -> nn.Module:
        raise NotImplementedError("no such operator here")

    monkeypatch.setattr(linear_forms, "FORMS", {"packed": missing})
    assert probe_forms() == {}

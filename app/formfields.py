"""Owns the way from a form's text fields to the JSON that the request models check.

Knows nothing of what fields exist beyond what the model declares. A form has only text, so each field is read as what
its place in the model needs: text stays text, everything else is read as JSON (`2`, `true`, `{"rate": 0.5}`, `["a"]`).
`evs.rate=0.5` and `evs[rate]=0.5` are the same as an `evs` object with that key.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel

from runner.errors import RequestError

TEXT_FIELDS = frozenset(
    {"prompt", "model", "user", "file_id", "evs.method", "evs.encoder", "format", "purpose", "expires_after.anchor"}
)
TEXT_UNLESS_LIST = frozenset({"stop"})
NESTED = frozenset({"evs", "video", "stream_options", "expires_after"})
_BRACKETS = re.compile(r"(\w+)\[(\w+)\]")


def build_json(fields: dict[str, str], model: type[BaseModel]) -> str:
    """One JSON object; unknown fields stay in it, so that the model refuses them by name."""
    body: dict[str, Any] = {}
    for written, text in fields.items():
        name = _BRACKETS.sub(r"\1.\2", written) if _BRACKETS.fullmatch(written) else written
        if text == "" and name != "prompt":
            continue  # an HTML form sends every input, filled in or not
        outer, dot, inner = name.partition(".")
        if dot and outer in NESTED:
            target = body.setdefault(outer, {})
            if not isinstance(target, dict):
                raise RequestError("invalid", f"give {outer} as one object or as {outer}.key fields", param=name[:64])
            if inner in target:
                raise RequestError("invalid", "the form gives this field twice", param=name[:64])
            target[inner] = _read(name, text, model)
        else:
            body[name] = _read(name, text, model)
    return json.dumps(body)


def _read(name: str, text: str, model: type[BaseModel]) -> Any:
    if name in TEXT_FIELDS or (name in TEXT_UNLESS_LIST and not text.startswith("[")):
        return text
    if name.partition(".")[0] not in model.model_fields:
        return text  # refused by name later, whatever it holds
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        raise RequestError(
            "invalid",
            f"{name!r} is not JSON; write a number, true, false, or an object or a list as JSON",
            param=name[:64],
        ) from None


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")

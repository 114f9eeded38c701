"""Owns how a route that reads its own body tells /docs what it takes.

Knows nothing of the routes.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


def describe_body(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inline_refs(schema)}}}}


def describe_form(model: type[BaseModel], *, file: Literal["required", "optional"]) -> dict[str, Any]:
    schema = inline_refs(model.model_json_schema())
    schema["properties"] = {"file": {"type": "string", "format": "binary"}, **schema["properties"]}
    if file == "required":
        schema["required"] = ["file", *schema.get("required", [])]
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def describe_query(model: type[BaseModel]) -> dict[str, Any]:
    properties = inline_refs(model.model_json_schema())["properties"]
    return {
        "parameters": [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()],
    }


def inline_refs(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without `$defs`, which OpenAPI would look for elsewhere. Ours are trees, so this ends."""
    definitions = schema.get("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(child) for child in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return resolve(definitions[node["$ref"].rpartition("/")[2]])
        return {key: resolve(child) for key, child in node.items() if key not in ("$defs", "discriminator")}

    resolved = resolve(schema)
    assert isinstance(resolved, dict)
    return resolved

"""Owns the reference page: every route, every field it takes, and what becomes of each, as plain HTML.

Knows nothing but the OpenAPI document, from which it is made, so that the page cannot say other than the server does.
It needs no script and nobody else's server: it works where there is no network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from app.schemas import IGNORED_NOTE, REFUSED_NOTE

Fate = Literal["honoured", "ignored", "refused"]
Json = Mapping[str, Any]

MANY = 2**31 - 1  # a bound that only says that the number fits its type is not worth reading
_CODE = re.compile(r"`([^`]+)`")
_STYLE = """
  :root { color-scheme: light dark; --line: #8884; --soft: #8881; }
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 58rem; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 2.5rem 0 .25rem; } h3 { font-size: .9rem; margin: 1rem 0 .25rem; }
  code { font: .875em ui-monospace, monospace; } h2 code { font-size: 1em; }
  .scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }
  th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-top: 1px solid var(--line); }
  details { background: var(--soft); border-radius: .4rem; padding: .25rem .75rem; margin: .5rem 0; }
  summary { cursor: pointer; } p { margin: .25rem 0; }
"""  # noqa: E501
_INTRODUCTION = """
<p>The official <code>openai</code> client, vLLM's clients and curl work unchanged against this server. Beside OpenAI's
own fields there are <code>evs</code> and <code>video</code>. The same page for programs is
<a href="openapi.json">openapi.json</a> (sockets under <code>x-websockets</code>); to try things, use the
<a href="./">playground</a>.</p>
<p>Each field of a request is in one of three lists. <b>Honoured</b>: it does what it says.
<b>Accepted without effect</b>: common clients always send it, so it is allowed and ignored.
<b>Refused</b>: a 400 whose <code>param</code> names it, unless it is null. <b>Every field that no list holds is refused
too</b>, so nothing is silently ignored.</p>
<p>Where a URL is asked for it may be <code>data:video/mp4;base64,…</code> (in any legal spelling),
<code>data:video/jpeg;base64,…,…</code> (a list of frames), <code>file-id://file-…</code> (a file stored by
<code>POST /v1/files</code>), <code>https://…</code> or <code>http://…</code> from a host that the server is told to
trust by <code>--allowed-media-domains</code> (<code>example.com</code> is that host, <code>.example.com</code>
those below it, other ports are named as <code>example.com:8443</code>), or <code>file:///…</code> under
<code>--allowed-local-media-path</code>.</p>
<p>Errors are <code>{"error": {"message", "type", "param", "code"}}</code>: 400 malformed, 401 key, 404 no such model or
file, 408 stalled body, 413 over a stated limit, 415 not a supported container or codec, 422 undecodable, 429 queue full
(with <code>Retry-After</code>), 503 shutting down, 504 decoding took too long, 507 no room on the server's disk.</p>
"""
_LISTS: tuple[tuple[Fate, str], ...] = (
    ("honoured", "Honoured"),
    ("ignored", "Accepted without effect"),
    ("refused", "Refused"),
)


@dataclass(frozen=True, kw_only=True)
class FieldNote:
    name: str
    kind: str
    fate: Fate


def render_reference(document: Json) -> str:
    routes = "".join(
        _render_route(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    routes += "".join(_render_socket(path, socket) for path, socket in document.get("x-websockets", {}).items())
    title = f"{document['info']['title']} {document['info']['version']}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} reference</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{_INTRODUCTION}{routes}</body></html>"
    )


def _render_text(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _render_route(method: str, path: str, operation: Json) -> str:
    parts = [
        f"<h2><code>{method.upper()} {escape(path)}</code></h2>",
        f"<p>{_render_text(operation.get('description', ''))}</p>",
    ]
    query = [entry for entry in operation.get("parameters", ()) if entry["in"] == "query"]
    notes = [FieldNote(name=entry["name"], kind=spell_type(entry["schema"]), fate="honoured") for entry in query]
    for content_type, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Takes <code>{escape(content_type)}</code>.</p>")
        notes += list_fields(content["schema"])
    return "".join(parts) + _render_fields(notes, f"{len(notes)} fields")


def _render_fields(notes: list[FieldNote], summary: str) -> str:
    if not notes:
        return ""
    lists = "".join(_render_list(title, [note for note in notes if note.fate == fate]) for fate, title in _LISTS)
    return f"<details><summary>{summary}</summary>{lists}</details>"


def _render_socket(path: str, socket: Json) -> str:
    """Events in both directions; those of clients with their fields."""
    parts = [f"<h2><code>WS {escape(path)}</code></h2><p>{_render_text(socket['description'])}</p>"]
    query = [FieldNote(name=p["name"], kind=spell_type(p["schema"]), fate="honoured") for p in socket["parameters"]]
    parts.append(_render_fields(query, "In the address") + "<h3>A client says</h3>")
    for name, event in socket["client_events"].items():
        summary = f"<code>{escape(name)}</code> {_render_text(event['description'])}"
        parts.append(_render_fields(list_fields(event["schema"]), summary))
    for title, table in (("The server says", socket["server_events"]), ("Close codes", socket["close_codes"])):
        rows = "".join(
            f"<tr><td><code>{escape(k)}</code></td><td>{_render_text(v)}</td></tr>" for k, v in table.items()
        )
        parts.append(f'<h3>{title}</h3><div class="scroll"><table>{rows}</table></div>')
    return "".join(parts)


def _render_list(title: str, notes: list[FieldNote]) -> str:
    if not notes:
        return ""
    kinds = [escape(note.kind) if note.fate == "honoured" else "" for note in notes]
    rows = "".join(
        f"<tr><td><code>{escape(note.name)}</code></td><td>{kind}</td></tr>"
        for note, kind in zip(notes, kinds, strict=True)
    )
    return f'<h3>{title}</h3><div class="scroll"><table>{rows}</table></div>'


# ------------------------------------------------------------------------------------------------------- the fields


def list_fields(schema: Json) -> list[FieldNote]:
    """Each field once, those inside objects and lists by their whole names: messages[].content[].video_url.fps"""
    return list({note.name: note for note in _walk(schema, "")}.values())


def _walk(schema: Json, prefix: str) -> Iterator[FieldNote]:
    for name, inner in schema.get("properties", {}).items():
        whole = f"{prefix}.{name}" if prefix else name
        yield FieldNote(name=whole, kind=spell_type(inner), fate=_read_fate(inner))
        if _read_fate(inner) == "honoured":
            yield from _walk(inner, whole)
    for choice in schema.get("anyOf", schema.get("oneOf", ())):
        yield from _walk(choice, prefix)
    if "items" in schema:
        yield from _walk(schema["items"], prefix + "[]")


def _read_fate(schema: Json) -> Fate:
    match schema.get("description"):
        case text if text == IGNORED_NOTE:
            return "ignored"
        case text if text == REFUSED_NOTE:
            return "refused"
        case _:
            return "honoured"


def spell_type(schema: Json) -> str:
    """'number > 0, <= 1000' of a JSON schema; null, which everywhere means absent, is left out."""
    if "const" in schema:
        return repr(schema["const"]) if isinstance(schema["const"], str) else str(schema["const"]).lower()
    if "enum" in schema:
        return " | ".join(repr(value) for value in schema["enum"])
    choices = schema.get("anyOf", schema.get("oneOf"))
    if choices is not None:
        spelled = dict.fromkeys(spell_type(choice) for choice in choices)
        return " | ".join(kind for kind in spelled if kind != "null")
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {spell_type(schema.get('items', {}))}"
    bounds = [
        f"{sign} {schema[key]:g}"
        for key, sign in (("exclusiveMinimum", ">"), ("minimum", ">="), ("exclusiveMaximum", "<"), ("maximum", "<="))
        if key in schema and abs(schema[key]) < MANY
    ]
    return " ".join([kind, ", ".join(bounds)]).strip()

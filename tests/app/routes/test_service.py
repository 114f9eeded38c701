"""Models, health, readiness, metrics, documents and the playground."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from tests.app.conftest import MakeClient, user
from tests.app.fake_engine import FakeEngine


def test_models(make_client: MakeClient) -> None:
    client = make_client(served_model_name=["Org/Model", "short"])
    body = client.get("/v1/models").json()
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["Org/Model", "short"]
    assert client.get("/v1/models/Org/Model").json() == body["data"][0]
    assert client.get("/v1/models/Org%2FModel").json() == body["data"][0]
    assert body["data"][0]["max_model_len"] == 4096
    missing = client.get("/v1/models/none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_health_follows_the_engine(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    assert [client.get(path).status_code for path in ("/health", "/ready")] == [200, 200]
    engine.is_alive = False
    assert [client.get(path).status_code for path in ("/health", "/ready")] == [503, 503]
    assert client.get("/health").json()["error"]["type"] == "server_error"


def test_metrics_are_prometheus_text(make_client: MakeClient) -> None:
    """Ours and the engine's, each family once, labels intact."""
    client = make_client(FakeEngine("abc"))
    client.post("/v1/chat/completions", json={"messages": user()})
    client.get("/no/such/route")
    response = client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    values = {(s.name, tuple(s.labels.values())): s.value for family in families.values() for s in family.samples}
    assert values["vllm:prompt_tokens_total", ()] == 12
    assert values["evs:route_total", ("eager", 'a "b"')] == 2
    assert values["vllm:num_requests_running", ()] == 1
    assert values["evs:engine_up", ()] == 1
    assert values["evs:answers_total", ("stop",)] == 1
    assert values["evs:http_requests_total", ("POST", "/v1/chat/completions", "200")] == 1
    assert values["evs:http_requests_total", ("any", "unknown", "404")] == 1
    assert values["vllm:time_to_first_token_seconds_count", ()] == 1
    assert len(families) == len(re.findall("^# TYPE", response.text, re.MULTILINE))


def test_metrics_outlive_the_engine(make_client: MakeClient) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    engine.is_alive = False
    text = client.get("/metrics").text
    assert "evs:engine_up 0.0" in text
    assert "evs:http_requests" in text


def test_unknown_routes_and_methods_have_openais_shape(make_client: MakeClient) -> None:
    client = make_client()
    missing = client.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_route")
    wrong = client.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"
    assert client.get("/v1/models/").status_code == 404


def test_documents(make_client: MakeClient) -> None:
    """/docs shows what the routes take although they read their own bodies."""
    client = make_client()
    assert client.get("/docs").status_code == 200
    paths = client.get("/openapi.json").json()["paths"]
    schema = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"messages", "evs", "video"} <= schema["properties"].keys()
    assert "$ref" not in str(schema)
    form = paths["/v1/videos/ask"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["required"] == ["prompt"] and {"file", "file_id"} <= form["properties"].keys()


def test_playground_asks_nobody_else(make_client: MakeClient) -> None:
    """One page, no address of another server in it, and a policy that forbids any."""
    page = make_client().get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.findall(r"(?:https?:)?//[\w.]+\.\w+", page.text)
    assert 'src="' not in page.text
    for name in re.findall(r'\$\("(\w+)"\)', page.text):
        assert f'id="{name}"' in page.text

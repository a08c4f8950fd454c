"""Keys are needed where the server has any, for everything but health and the API's own description."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.asgi import CHAT, COMPLETIONS, ask
from tests.server.fakes import MODEL, FakeServer, fake_server

GUARDED = [
    ("POST", CHAT),
    ("POST", COMPLETIONS),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/x"),
    ("GET", "/v1/status"),
    ("GET", "/status"),
    ("GET", "/metrics"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> FakeServer:
    folder = tmp_path_factory.mktemp("keys")
    keys_file = folder / "keys"
    keys_file.write_text("# ours\nthird-key\n")
    return fake_server(folder, api_keys=("first-key", "second-kéy"), api_keys_file=keys_file)


@pytest.mark.parametrize(("method", "path"), GUARDED)
@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", "Bearer first-keyx", "Basic first-key"])
def test_no_key_or_a_wrong_one_is_401(server: FakeServer, method: str, path: str, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    response = ask(server, method, path, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert "first-key" not in response.text


@pytest.mark.parametrize("key", ["first-key", "second-kéy", "third-key"])
def test_every_key_opens(server: FakeServer, key: str) -> None:
    for headers in ({"authorization": f"Bearer {key}".encode()}, {"x-api-key": key.encode()}):
        assert ask(server, "GET", "/v1/models", headers=headers).status_code == 200


def test_a_key_is_the_same_client_in_either_header(server: FakeServer) -> None:
    salts = []
    for headers in ({"authorization": "Bearer first-key"}, {"x-api-key": "first-key"}):
        ask(server, "POST", COMPLETIONS, json={"model": MODEL, "prompt": "hi"}, headers=headers)
        salts.append(server.last.terms.cache_salt)
    assert salts[0] == salts[1] != b""


@pytest.mark.parametrize("key", ["", "wrong", "first-keyx"])
def test_a_wrong_key_in_the_other_header_is_401(server: FakeServer, key: str) -> None:
    assert ask(server, "GET", "/v1/models", headers={"x-api-key": key}).status_code == 401


def test_prompts_share_computation_only_within_a_key_and_a_salt(server: FakeServer) -> None:
    salts = []
    for key in ("first-key", "third-key"):
        for cache_salt in (None, "a", "b"):
            fields = {} if cache_salt is None else {"cache_salt": cache_salt}
            body = {"model": MODEL, "prompt": "hi", **fields}
            response = ask(server, "POST", COMPLETIONS, json=body, headers={"authorization": f"Bearer {key}"})
            assert response.status_code == 200
            salts.append(server.last.terms.cache_salt)
    assert len(set(salts)) == 6
    assert not any(b"key" in salt for salt in salts), "digests, not keys"


def test_without_keys_the_salt_is_all_that_separates(tmp_path: Path) -> None:
    server = fake_server(tmp_path)
    for fields, salt in (({}, b""), ({"cache_salt": "a"}, b"a")):
        body = {"model": MODEL, "prompt": "hi", **fields}
        ask(server, "POST", COMPLETIONS, json=body, headers={"authorization": "Bearer anything"})
        assert server.last.terms.cache_salt == salt


@pytest.mark.parametrize("path", ["/health", "/docs", "/openapi.json"])
def test_some_pages_need_no_key(server: FakeServer, path: str) -> None:
    assert ask(server, "GET", path).status_code == 200


def test_a_wrong_key_is_refused_before_the_body_is_read(server: FakeServer) -> None:
    assert ask(server, "POST", CHAT, content=b"not json").status_code == 401


def test_without_keys_none_is_needed(tmp_path: Path) -> None:
    assert ask(fake_server(tmp_path), "GET", "/v1/models").status_code == 200
    assert ask(fake_server(tmp_path), "GET", "/v1/models", headers={"authorization": "Bearer any"}).status_code == 200


def test_browsers_are_let_in_by_origin(tmp_path: Path) -> None:
    server = fake_server(tmp_path, api_keys=("k",), cors_origin=("http://ui.example",))
    preflight = {
        "origin": "http://ui.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    allowed = ask(server, "OPTIONS", CHAT, headers=preflight)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "http://ui.example"
    refused = ask(server, "OPTIONS", CHAT, headers={**preflight, "origin": "http://evil.example"})
    assert "access-control-allow-origin" not in refused.headers
    answered = ask(server, "GET", "/v1/models", headers={"origin": "http://ui.example", "authorization": "Bearer k"})
    assert answered.headers["access-control-allow-origin"] == "http://ui.example"
    assert "access-control-allow-origin" not in ask(fake_server(tmp_path), "GET", "/health", headers=preflight).headers

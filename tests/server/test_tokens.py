"""POST /tokenize and /detokenize, and the endpoints that are refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers

from mtplx.server.handlers.absent import ABSENT
from mtplx.text.tokenizer import Tokenizer
from tests.fakes import write_byte_tokenizer
from tests.server.asgi import USER_SAYS_HI, ask, chat, complete, error_of
from tests.server.fakes import MODEL, FakeServer, fake_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> FakeServer:
    """Its tokenizer adds a bos token where it is asked to."""
    folder = write_byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return fake_server(folder, tokenizer=Tokenizer(backend, {"bos_token": "<pad>", "add_bos_token": True}))


def post(server: FakeServer, path: str, **body: Any) -> httpx.Response:
    return ask(server, "POST", path, json=body)


def test_a_text_becomes_the_tokens_of_a_completion(server: FakeServer) -> None:
    answer = post(server, "/tokenize", model=MODEL, prompt="hi é").json()
    complete(server, prompt="hi é")
    assert answer == {
        "count": len(server.last.prompts[0]),
        "max_model_len": server.streams.max_model_len,
        "tokens": list(server.last.prompts[0]),
        "token_strs": None,
    }


def test_messages_become_the_tokens_of_a_chat(server: FakeServer) -> None:
    answer = post(server, "/tokenize", messages=USER_SAYS_HI).json()
    chat(server)
    assert answer["tokens"] == list(server.last.prompts[0])


def test_a_message_that_goes_on_does_so_here_too(server: FakeServer) -> None:
    begun = [*USER_SAYS_HI, {"role": "assistant", "content": "well, "}]
    answer = post(server, "/tokenize", messages=begun, continue_final_message=True).json()
    assert answer["tokens"] == post(server, "/tokenize", messages=begun).json()["tokens"][: answer["count"]]
    chat(server, messages=begun, continue_final_message=True)
    assert answer["tokens"] == list(server.last.prompts[0])


@pytest.mark.parametrize("start", [{"prompt": "hi"}, {"messages": USER_SAYS_HI}])
def test_special_tokens_are_added_on_request(server: FakeServer, start: dict[str, Any]) -> None:
    plain, added = (
        post(server, "/tokenize", **start, add_special_tokens=choice).json()["tokens"] for choice in (False, True)
    )
    assert added == [server.tokenizer.bos_id, *plain]


def test_tokens_are_spelled_as_the_vocabulary_spells_them(server: FakeServer) -> None:
    answer = post(server, "/tokenize", prompt="a é", add_special_tokens=False, return_token_strs=True).json()
    assert answer["token_strs"] == [server.tokenizer.token(token_id) for token_id in answer["tokens"]]
    assert answer["token_strs"][:2] == ["a", "Ġ"]


def test_tokens_become_their_text_with_special_ones_spelled_out(server: FakeServer) -> None:
    tokens = post(server, "/tokenize", prompt="hi é", add_special_tokens=True).json()["tokens"]
    text = post(server, "/detokenize", model=MODEL, tokens=tokens).json()
    assert text == {"prompt": "<pad>hi é"}
    assert post(server, "/detokenize", tokens=[]).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": USER_SAYS_HI}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "mood": 1}, 400, "mood"),
        ("/tokenize", {"prompt": "x", "tools": []}, 400, "tools"),
        ("/tokenize", {"prompt": "x", "chat_template_kwargs": {}}, 400, "chat_template_kwargs"),
        ("/tokenize", {"messages": USER_SAYS_HI, "chat_template_kwargs": {"x": 1}}, 400, "chat_template_kwargs.x"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "x" * 100_000}, 400, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * 100_000}]}, 400, "messages"),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": "x"}, 400, "tokens"),
        ("/detokenize", {"tokens": [5, -1]}, 400, "tokens.1"),
        ("/detokenize", {"tokens": [99_999]}, 400, "tokens"),
        ("/detokenize", {"tokens": [5] * 65}, 400, "tokens"),
        ("/detokenize", {"tokens": [5], "model": "other"}, 404, "model"),
    ],
)
def test_what_is_wrong_is_named(server: FakeServer, path: str, body: dict[str, Any], status: int, param: str) -> None:
    response = post(server, path, **body)
    assert (response.status_code, error_of(response)["param"]) == (status, param)


@pytest.mark.parametrize("path", [path for absent in ABSENT for path in absent.paths])
def test_endpoints_that_people_try_are_refused_with_the_reason(server: FakeServer, path: str) -> None:
    path = path.replace("{kind}", "x").replace("{id:path}", "resp_1/cancel")
    for method in ("GET", "POST", "DELETE"):
        response = ask(server, method, path)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "unsupported_endpoint")
        assert path in error["message"]


def test_an_address_that_a_client_made_up_is_echoed_briefly(server: FakeServer) -> None:
    assert len(ask(server, "GET", "/v1/responses/" + "x" * 10_000).text) < 500


def test_embeddings_are_refused_by_name(server: FakeServer) -> None:
    response = post(server, "/v1/embeddings", model=MODEL, input="x")
    error = error_of(response)
    assert (response.status_code, error["type"], error["code"]) == (
        400,
        "invalid_request_error",
        "unsupported_endpoint",
    )
    assert "embedding model" in error["message"]


def test_keys_guard_these_too(tmp_path: Path) -> None:
    server = fake_server(tmp_path, api_keys=("k",))
    assert post(server, "/tokenize", prompt="x").status_code == 401
    assert post(server, "/v1/embeddings").status_code == 401

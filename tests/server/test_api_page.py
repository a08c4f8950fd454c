"""docs/api.md, the request models and OpenAI's own list of fields agree."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from mtplx.server.body import MAX_BODY_BYTES
from mtplx.server.error_bodies import _CODES_BY_PYDANTIC_TYPE, _CODES_BY_STATUS
from mtplx.server.protocol.chat import ChatCompletionRequest
from mtplx.server.protocol.completions import CompletionRequest
from mtplx.server.protocol.messages import CountTokensRequest, MessagesRequest
from tests.server.asgi import ask
from tests.server.fakes import fake_server

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api_docs", ROOT / "scripts" / "make_api_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def test_page_is_what_the_generator_writes(generator: ModuleType, page: str) -> None:
    assert page == generator.render_page(page), "docs/api.md is stale: run python scripts/make_api_docs.py"


def test_every_field_has_a_row_that_says_something(generator: ModuleType, page: str) -> None:
    for model in generator.MODELS.values():
        rows = list(generator.field_rows(model))
        assert {row.path for row in rows} >= set(model.model_fields)
        assert [row.path for row in rows if not row.note] == []
        assert all(row.as_markdown() in page for row in rows)


def test_fields_inside_fields_have_rows(generator: ModuleType) -> None:
    paths = {row.path for row in generator.field_rows(ChatCompletionRequest)}
    assert {"stream_options.include_usage", "messages.*.tool_calls", "messages.*.content.*.text"} <= paths


@pytest.mark.parametrize(
    ("known", "model"),
    [
        (chat_create_params.CompletionCreateParamsStreaming, ChatCompletionRequest),
        (completion_create_params.CompletionCreateParamsStreaming, CompletionRequest),
    ],
)
def test_every_field_of_the_official_client_is_known(known: Any, model: Any) -> None:
    assert set(get_type_hints(known)) - set(model.model_fields) == set()


def test_tokens_are_counted_of_fields_that_a_message_has() -> None:
    assert CountTokensRequest.model_fields.keys() <= MessagesRequest.model_fields.keys()


def test_page_names_every_endpoint(tmp_path: Path, page: str) -> None:
    described = ask(fake_server(tmp_path), "GET", "/openapi.json").json()
    for path, operations in described["paths"].items():
        for method in operations:
            assert f"`{method.upper()} {path.replace('{model_id}', '{id}')}`" in page


def test_page_names_every_code_and_the_limit(page: str) -> None:
    codes = [*_CODES_BY_PYDANTIC_TYPE.values(), *_CODES_BY_STATUS.values()]
    assert [code for code in codes if f"`{code}`" not in page] == []
    assert f"{MAX_BODY_BYTES // 2**20} MiB" in page

"""The two clients: a local server's defaults, dicts from `get`, and all of the base class as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from mtplx.client import AsyncOpenAIClient, OpenAIClient
from mtplx.errors import MtplxError
from tests.unit.fake_api import STATUS, Answer, FakeApi, Page, fake_api


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as api:
        yield api


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MTPLX_BASE_URL", "MTPLX_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def test_get_gives_a_dict(api: FakeApi) -> None:
    with OpenAIClient(base_url=api.url) as client:
        assert client.get("/status") == STATUS
        assert client.get("/status")["scheduler_mode"] == "ar_batch"


def test_async_get_gives_a_dict(api: FakeApi) -> None:
    async def ask() -> dict[str, object]:
        async with AsyncOpenAIClient(base_url=api.url) as client:
            return await client.get("/status")

    assert asyncio.run(ask()) == STATUS


def test_resources_of_the_base_class_still_get_their_own_types(api: FakeApi) -> None:
    with OpenAIClient(base_url=api.url) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        model = client.models.retrieve("tiny")
        assert isinstance(model, openai.types.Model)
        assert model.owned_by == "tests"
        raw = client.models.with_raw_response.retrieve("tiny")
        assert raw.parse() == model


def test_async_resources_of_the_base_class_still_get_their_own_types(api: FakeApi) -> None:
    async def ask() -> tuple[list[str], openai.types.Model]:
        async with AsyncOpenAIClient(base_url=api.url) as client:
            return [model.id async for model in client.models.list()], await client.models.retrieve("tiny")

    names, model = asyncio.run(ask())
    assert names == ["tiny"]
    assert isinstance(model, openai.types.Model)


def test_get_with_cast_to_is_the_base_class(api: FakeApi) -> None:
    api.pages["/v1/metrics"] = Page("up 1\n", content_type="text/plain")
    with OpenAIClient(base_url=api.url) as client:
        assert client.get("/metrics", cast_to=str) == "up 1\n"
        assert isinstance(client.get("/models/tiny", cast_to=openai.types.Model), openai.types.Model)


@pytest.mark.parametrize("page", [Page("up 1\n", content_type="text/plain"), Page([1, 2])])
def test_get_of_a_page_that_is_no_object_says_so(page: Page, api: FakeApi) -> None:
    api.pages["/v1/page"] = page
    with OpenAIClient(base_url=api.url) as client, pytest.raises(MtplxError, match="/page is no JSON object"):
        client.get("/page")


def test_get_raises_the_base_class_errors(api: FakeApi) -> None:
    with OpenAIClient(base_url=api.url) as client, pytest.raises(openai.NotFoundError):
        client.get("/none")


def test_get_passes_request_options_on(api: FakeApi) -> None:
    with OpenAIClient(base_url=api.url) as client:
        client.get("/status", options={"headers": {"Authorization": "Bearer other"}})
    assert api.asked[-1].authorization == "Bearer other"


def test_streaming_is_untouched(api: FakeApi) -> None:
    api.answers.append(Answer(("Hel", "lo")))
    with OpenAIClient(base_url=api.url) as client:
        stream = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True, extra_body={"top_k": 5}
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello"
    assert api.asked[-1].body["top_k"] == 5


def test_defaults_are_a_local_server_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-another-service")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://another.example/v1")
    with OpenAIClient() as client:
        assert str(client.base_url) == "http://127.0.0.1:8000/v1/"
        assert client.api_key == "none"


def test_variables_set_the_defaults(monkeypatch: pytest.MonkeyPatch, api: FakeApi) -> None:
    monkeypatch.setenv("MTPLX_BASE_URL", api.url)
    monkeypatch.setenv("MTPLX_API_KEY", "first, second")  # as the server reads it: a list
    with OpenAIClient() as client:
        client.get("/status")
    assert api.asked[-1].authorization == "Bearer first"
    with OpenAIClient(base_url="http://127.0.0.1:1/v1", api_key="mine") as client:
        assert (str(client.base_url), client.api_key) == ("http://127.0.0.1:1/v1/", "mine")


def test_copies_keep_type_address_and_key(api: FakeApi) -> None:
    with OpenAIClient(base_url=api.url, api_key="mine") as client:
        copy = client.with_options(max_retries=0)
        assert type(copy) is OpenAIClient
        assert copy.get("/status") == STATUS
    assert api.asked[-1].authorization == "Bearer mine"

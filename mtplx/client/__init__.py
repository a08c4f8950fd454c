"""Clients for a running server: the `openai` package's own, with a local server's defaults and a plain `get`."""

from mtplx.client.clients import AsyncOpenAIClient, OpenAIClient

__all__ = ["AsyncOpenAIClient", "OpenAIClient"]

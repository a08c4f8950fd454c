"""What the commands that talk to a running server share: the flags that find it, and its failures in plain words."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import openai

from mtplx.client import OpenAIClient
from mtplx.errors import ConfigError, MtplxError

TIMEOUT_S = 600.0  # a first token may wait behind a long queue


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", help="the server's API address (default: MTPLX_BASE_URL, else http://127.0.0.1:8000/v1)"
    )
    parser.add_argument("--api-key", metavar="KEY", help="the key to send (default: the first of MTPLX_API_KEY)")


def connect(namespace: argparse.Namespace) -> OpenAIClient:
    """A client that says at once when nobody answers, rather than trying again.

    Raises:
        ConfigError: the address is none.
    """
    named, url = "--url", namespace.url
    if url is None:
        named, url = "MTPLX_BASE_URL", os.environ.get("MTPLX_BASE_URL") or None
    return OpenAIClient(
        base_url=None if url is None else _api_address(url, named),
        api_key=namespace.api_key,
        max_retries=0,
        timeout=TIMEOUT_S,
    )


@contextmanager
def plain_errors(client: OpenAIClient) -> Iterator[None]:
    """Turns the client's exceptions into one sentence each.

    Raises:
        MtplxError: the server can't be reached, or refused, or failed.
    """
    try:
        yield
    except openai.APITimeoutError:
        raise MtplxError(f"{client.base_url} didn't answer within {TIMEOUT_S:.0f} seconds") from None
    except openai.APIConnectionError:
        raise MtplxError(f"no connection to a server at {client.base_url}; start one with: mtplx serve") from None
    except openai.AuthenticationError:
        raise MtplxError(f"{client.base_url} wants a key: give one with --api-key or MTPLX_API_KEY") from None
    except openai.APIStatusError as error:
        raise MtplxError(f"{client.base_url} answered {error.status_code}: {_message(error)}") from None
    except openai.APIError as error:
        raise MtplxError(f"{client.base_url} broke off: {error.message}") from None


def _api_address(url: str, named: str) -> str:
    """`url`, under /v1 where it names a bare host."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that don't close, a port over 65535
        is_address = False
    if not is_address:
        raise ConfigError(f"{named} {url} is no address such as http://127.0.0.1:8000/v1", named)
    return url if parts.path.strip("/") else url.rstrip("/") + "/v1"


def _message(error: openai.APIStatusError) -> str:
    """The server's own words when it sent an OpenAI error body, which the client has unwrapped."""
    body = error.body
    return str(body["message"]) if isinstance(body, dict) and "message" in body else error.message

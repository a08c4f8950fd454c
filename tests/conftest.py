"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mtplx.model.weights import resolve_model
from tests.e2e.server import running_server

# A shared machine may stall any single example, and the making of one.
settings.register_profile("mtplx", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mtplx")


@pytest.fixture(scope="session")
def default_model_folder() -> Path:
    """The default model's folder, by the code path that users take; fetched once into the user's own cache."""
    return resolve_model("smollm2-135m-instruct").path


@pytest.fixture(scope="session")
def live_server_url(default_model_folder: Path) -> Iterator[str]:
    """The address of a server process on the default model with default settings, shared by the tests that only ask."""
    with running_server("--kv-cache-tokens", "8192") as server:
        yield server.url

"""What a server prints at its start."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from mtplx.config import Settings
from mtplx.server.assemble import start_up_lines
from tests.fakes import FakeRunner
from tests.live import fake_assembly


@pytest.mark.parametrize(
    ("host", "keys", "is_warned"),
    [
        ("127.0.0.1", (), False),
        ("127.8.8.8", (), False),
        ("::1", (), False),
        ("localhost", (), False),
        ("0.0.0.0", (), True),
        ("::", (), True),
        ("192.168.1.5", (), True),
        ("my-host", (), True),
        ("0.0.0.0", ("secret-key",), False),
    ],
)
def test_a_server_that_others_can_reach_without_a_key_says_so(
    tmp_path: Path, host: str, keys: tuple[str, ...], is_warned: bool
) -> None:
    settings = Settings(host=host, api_key=tuple(SecretStr(key) for key in keys), scheduler_mode="ar_batch")
    lines = start_up_lines(fake_assembly(tmp_path, FakeRunner(), settings))
    warnings = [line for line in lines if line.startswith("warning ")]
    assert bool(warnings) == is_warned
    assert all(host in warning and "--api-key" in warning for warning in warnings)
    assert not any("secret-key" in line for line in lines)

"""Settings come from flags, variables, a file and defaults, in that order, and wrong ones are refused by name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from mtplx.batching.state import SchedulerMode
from mtplx.config import (
    OTHER_VARIABLES,
    Parser,
    Settings,
    add_settings_arguments,
    flag_name,
    load_settings,
    read_api_keys,
    resolve_settings,
    variable_name,
)
from mtplx.errors import ConfigError


@dataclass(frozen=True)
class Sample:
    """One value in every spelling."""

    flags: tuple[str, ...]
    variable: str
    toml: str
    value: Any


def plain(name: str, low: Any, high: Any) -> tuple[Sample, Sample]:
    """Two samples of a setting whose text is the same everywhere, numbers unquoted in the file."""
    quoted = [f'"{value}"' if isinstance(value, str | Path) else str(value) for value in (low, high)]
    return (
        Sample((flag_name(name), str(low)), str(low), quoted[0], low),
        Sample((flag_name(name), str(high)), str(high), quoted[1], high),
    )


SAMPLES: dict[str, tuple[Sample, Sample]] = {
    "model": plain("model", "a.gguf", "org/model"),
    "served_model_name": plain("served_model_name", "tiny", "small"),
    "scheduler_mode": plain("scheduler_mode", SchedulerMode.SERIAL, SchedulerMode.COOPERATIVE),
    "runner": plain("runner", "torch", "native"),
    "device": plain("device", "cpu", "auto"),
    "dtype": plain("dtype", "float64", "bfloat16"),
    "quantization": plain("quantization", "int8", "none"),
    "kv_cache_dtype": plain("kv_cache_dtype", "float16", "float32"),
    "exact": (Sample(("--no-exact",), "false", "false", False), Sample(("--exact",), "true", "true", True)),
    "threads": plain("threads", 1, 2),
    "host": plain("host", "0.0.0.0", "::1"),
    "port": plain("port", 0, 9000),
    "api_key": (
        Sample(
            ("--api-key", "one", "--api-key", "two"), "one, two", '["one", "two"]', (SecretStr("one"), SecretStr("two"))
        ),
        Sample(("--api-key", "three"), "three", '["three"]', (SecretStr("three"),)),
    ),
    "api_keys_file": plain("api_keys_file", Path("keys"), Path("more/keys")),
    "cors_origin": (
        Sample(
            ("--cors-origin", "http://a", "--cors-origin", "http://b"),
            "http://a,http://b",
            '["http://a", "http://b"]',
            ("http://a", "http://b"),
        ),
        Sample(("--cors-origin", "*"), "*", '["*"]', ("*",)),
    ),
    "max_model_len": plain("max_model_len", 64, 4096),
    "kv_cache_tokens": plain("kv_cache_tokens", 1024, 2048),
    "decode_batch_max": plain("decode_batch_max", 1, 32),
    "max_queue": plain("max_queue", 0, 7),
    "max_requests_per_key": plain("max_requests_per_key", 1, 8),
    "max_connections": plain("max_connections", 1, 4096),
    "receive_timeout_s": plain("receive_timeout_s", 0.5, 60.0),
    "send_timeout_s": plain("send_timeout_s", 0.5, 60.0),
    "step_timeout_s": plain("step_timeout_s", 0.5, 600.0),
    "prefill_chunk_tokens": plain("prefill_chunk_tokens", 16, 128),
    "prefix_cache": plain("prefix_cache", "off", "on"),
    "tool_parser": plain("tool_parser", "hermes", "none"),
    "reasoning_parser": plain("reasoning_parser", "think", "none"),
    "experimental_mtp_cohorts": (
        Sample(("--experimental-mtp-cohorts",), "1", "true", True),
        Sample(("--no-experimental-mtp-cohorts",), "0", "false", False),
    ),
    "draft_head": plain("draft_head", "none", "heads/a.safetensors"),
    "draft_depth": plain("draft_depth", 1, 8),
    "drain_timeout_s": plain("drain_timeout_s", 0.5, 60.0),
    "request_timeout_s": plain("request_timeout_s", 0.5, 60.0),
    "keepalive_s": plain("keepalive_s", 0.25, 5.0),
    "otlp_endpoint": plain("otlp_endpoint", "http://localhost:4318", "https://collector/v1/traces"),
    "log_format": plain("log_format", "json", "text"),
    "log_level": plain("log_level", "debug", "error"),
}
FIELDS = sorted(Settings.model_fields)


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("MTPLX_")]:
        monkeypatch.delenv(name)


def resolve(*arguments: str) -> Settings:
    parser = Parser(prog="serve")
    add_settings_arguments(parser)
    return resolve_settings(parser.parse(arguments))


def refusal(*arguments: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        resolve(*arguments)
    return caught.value


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_samples_cover_every_setting() -> None:
    assert sorted(SAMPLES) == FIELDS


@pytest.mark.parametrize("name", FIELDS)
def test_flag_wins_over_variable_over_file_over_default(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = SAMPLES[name]
    default = Settings.model_fields[name].default
    assert getattr(resolve(), name) == default

    config = write(tmp_path / "server.toml", f"{name} = {first.toml}\n")
    assert getattr(resolve("--config", config), name) == first.value

    monkeypatch.setenv(variable_name(name), second.variable)
    assert getattr(resolve(), name) == second.value
    assert getattr(resolve("--config", config), name) == second.value

    assert getattr(resolve("--config", config, *first.flags), name) == first.value


@pytest.mark.parametrize("name", FIELDS)
def test_every_source_reads_both_samples(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for sample in SAMPLES[name]:
        assert getattr(resolve(*sample.flags), name) == sample.value
        config = write(tmp_path / "server.toml", f"{name} = {sample.toml}\n")
        assert getattr(resolve("--config", config), name) == sample.value
        with monkeypatch.context() as patch:
            patch.setenv(variable_name(name), sample.variable)
            assert getattr(resolve(), name) == sample.value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--port", "99999"), ("--port", "65535", "99999")),
        (("--port", "http"), ("--port", "integer", "http")),
        (("--scheduler-mode", "ar-batch"), ("--scheduler-mode", "ar_batch", "cooperative")),
        (("--runner", "tpu"), ("--runner", "'torch'", "tpu")),
        (("--device", "tpu"), ("--device", "tpu")),
        (("--draft-depth", "-1"), ("--draft-depth", "0", "-1")),
        (("--keepalive-s", "nan"), ("--keepalive-s", "finite")),
        (("--host", ""), ("--host", "empty")),
    ],
)
def test_bad_flag_is_refused_by_name(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    error = refusal(*arguments)
    assert error.parameter == arguments[0]
    assert "\n" not in str(error)
    for word in words:
        assert word in str(error)


def test_bad_variable_is_refused_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPLX_PORT", "tcp://10.0.0.1:8000")
    error = refusal()
    assert str(error).startswith("MTPLX_PORT:")
    assert error.parameter == "--port"


def test_bad_key_of_the_file_is_refused_by_key_and_file(tmp_path: Path) -> None:
    config = write(tmp_path / "server.toml", "max_queue = -3\n")
    assert str(refusal("--config", config)).startswith(f"max_queue in {config}:")


@pytest.mark.parametrize("key", ["maxqueue", "max-queue"])
def test_unknown_key_of_the_file_is_refused_with_the_nearest_name(key: str, tmp_path: Path) -> None:
    message = str(refusal("--config", write(tmp_path / "server.toml", f"{key} = 3\n")))
    assert key in message
    assert "did you mean max_queue?" in message


def test_unknown_variable_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPLX_MAXQUEUE", "3")
    assert str(refusal()) == "MTPLX_MAXQUEUE is no variable of mtplx; did you mean MTPLX_MAX_QUEUE?"


def test_variables_of_other_parts_are_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OTHER_VARIABLES:
        monkeypatch.setenv(name, "1")
    assert resolve() == load_settings({})


def test_a_setting_not_there_is_refused_in_process_too() -> None:
    with pytest.raises(ConfigError, match="max_que is no setting; did you mean max_queue"):
        load_settings({"max_que": 3})


@pytest.mark.parametrize("text", ["port = ", b"\xff\xfe"])
def test_unreadable_file_is_refused(text: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    error = refusal("--config", str(path))
    assert error.parameter == "--config"
    assert str(path) in str(error)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    assert "is not a file" in str(refusal("--config", str(tmp_path / "none.toml")))
    assert "is not a file" in str(refusal("--config", str(tmp_path)))


def test_abbreviated_flag_is_refused() -> None:
    assert "--max-q" in str(refusal("--max-q", "3"))


def test_value_of_a_mistyped_flag_is_not_repeated() -> None:
    for arguments in (("--api-kee", "sk-secret"), ("--api-kee=sk-secret",)):
        message = str(refusal(*arguments))
        assert "--api-kee" in message
        assert "sk-secret" not in message


def test_keys_are_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = resolve("--api-key", "sk-secret")
    assert "sk-secret" not in f"{settings!r} {settings}"
    config = write(tmp_path / "server.toml", 'api_key = "sk-secret"\n')  # should have been a list
    assert "sk-secret" not in str(refusal("--config", config))


@pytest.mark.parametrize("value", ["", " ", "one,", "one,,two"])
def test_empty_keys_do_not_open_the_door(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPLX_API_KEY", value)
    assert str(refusal()) == "MTPLX_API_KEY: input should not be empty"


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        resolve().port = 1


def test_native_runner_on_a_gpu_is_a_contradiction() -> None:
    assert refusal("--runner", "native", "--device", "cuda:1").parameter == "--runner"
    assert resolve("--runner", "native", "--device", "cpu").runner == "native"


@pytest.mark.parametrize(
    "flags",
    [
        ("--dtype", "float32", "--runner", "native"),
        ("--quantization", "int4", "--runner", "torch"),
        ("--kv-cache-dtype", "float16", "--runner", "torch"),
    ],
)
def test_a_number_format_of_the_other_runner_is_a_contradiction(flags: tuple[str, ...]) -> None:
    assert refusal(*flags).parameter == flags[0]
    assert resolve(*flags[:2])


def test_keys_of_the_file_follow_those_of_the_flags(tmp_path: Path) -> None:
    path = write(tmp_path / "keys", "# for the build machines\nsk-1\n\n  sk-2  \n")
    keys = read_api_keys(resolve("--api-key", "sk-0", "--api-keys-file", path))
    assert [key.get_secret_value() for key in keys] == ["sk-0", "sk-1", "sk-2"]
    assert read_api_keys(resolve()) == ()


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n"])
def test_a_file_without_keys_is_refused(text: str, tmp_path: Path) -> None:
    settings = resolve("--api-keys-file", write(tmp_path / "keys", text))
    with pytest.raises(ConfigError, match="holds no key"):
        read_api_keys(settings)
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        read_api_keys(resolve("--api-keys-file", str(tmp_path / "none")))

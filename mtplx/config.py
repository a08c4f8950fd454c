"""All settings of a server, declared once: `Settings` gives the flags, MTPLX_* variables, file keys and help texts.

Precedence: flag, then environment, then `--config` file, then default. Resolved once, frozen, printed at start-up.
Knows nothing of models, modes that exist yet, or HTTP; what needs those is checked where they are known.
"""

from __future__ import annotations

import argparse
import os
import tomllib
import types
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, Union, get_args, get_origin

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from mtplx.batching.state import SchedulerMode
from mtplx.errors import ConfigError

ENV_PREFIX = "MTPLX_"
AUTO: Final = "auto"

# Variables with our prefix that are not settings of the server: the model cache's place and the client's address.
OTHER_VARIABLES = frozenset({"MTPLX_CACHE_DIR", "MTPLX_BASE_URL"})


class Settings(BaseSettings):
    """Every field is a flag (`--max-queue`), a variable (`MTPLX_MAX_QUEUE`) and a key of the file (`max_queue`)."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid")

    model: str = Field("smollm2-135m-instruct", description="catalog name, hub id, local folder or .gguf file")
    served_model_name: str | None = Field(None, description="the name clients use; default: the model's own")
    scheduler_mode: SchedulerMode | None = Field(
        None, description="how requests share the model; default: mtp_batch with a head, else ar_batch"
    )
    runner: Literal["auto", "torch", "native"] = Field("auto", description="what computes the logits")
    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="auto, cpu, cuda, cuda:1, mps")
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = Field(
        "auto", description="type of the torch runner's weights and cache; auto is float32 on cpu"
    )
    quantization: Literal["auto", "none", "int8", "int4"] = Field(
        "auto", description="how the native runner keeps weights; auto: a GGUF's own blocks, safetensors as int8"
    )
    kv_cache_dtype: Literal["auto", "float16", "float32"] = Field(
        "auto", description="type of the native runner's cache; auto is float16, with --quantization none float32"
    )
    exact: bool = Field(True, description="on cpu, results that don't depend on the batch; --no-exact for speed")
    threads: int | None = Field(None, ge=1, description="CPU threads; default: the physical cores")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    api_key: tuple[SecretStr, ...] = Field((), description="a key that clients must send; repeatable")
    api_keys_file: Path | None = Field(None, description="a file with one key a line; blank and # lines are skipped")
    cors_origin: tuple[str, ...] = Field((), description="an origin that browsers may call from; repeatable")
    max_model_len: int | None = Field(None, ge=8, description="most tokens of prompt and answer; default: the model's")
    kv_cache_tokens: int | None = Field(None, ge=16, description="size of the cache in tokens; default: by free memory")
    decode_batch_max: int | None = Field(
        None, ge=1, description="most sequences running at once; default 16, cooperative: the chunk size"
    )
    max_queue: int = Field(128, ge=0, description="most sequences waiting; more get 503")
    max_requests_per_key: int | None = Field(
        None, ge=1, description="most sequences of one API key running or waiting; more get 429; default: all there are"
    )
    max_connections: int | None = Field(
        None, ge=1, description="most connections open at once; more get 503; default: 512 more than --max-queue"
    )
    receive_timeout_s: float = Field(
        30.0, gt=0, allow_inf_nan=False, description="seconds in which a request must have come whole; then it gets 408"
    )
    send_timeout_s: float = Field(
        60.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds in which a client must read some of its answer, or be cut off",
    )
    prefill_chunk_tokens: int | None = Field(
        None, ge=1, description="most prompt tokens in one step; default 64 on cpu, else 512"
    )
    prefix_cache: Literal["on", "off"] = Field(
        "on", description="whether prompts that begin alike share the computation of their beginning"
    )
    draft_head: str = Field(
        AUTO, description="what guesses tokens ahead: a head file, none, or auto: what comes with the model"
    )
    draft_depth: Literal["auto", 0, 1, 2, 3, 4, 5, 6, 7, 8] = Field(
        AUTO, description="tokens guessed ahead by a draft head; auto: serial 0, else by acceptance and cost"
    )
    tool_parser: Literal["auto", "hermes", "qwen3_coder", "llama3_json", "mistral", "pythonic", "none"] = Field(
        AUTO, description="how the model writes tool calls; auto: as its chat template says"
    )
    reasoning_parser: Literal["auto", "think", "none"] = Field(
        AUTO, description="whether thoughts in <think> tags are told from answers; auto: if the chat template has these"
    )
    experimental_mtp_cohorts: bool = Field(False, description="opens --scheduler-mode mtp_cohort_experimental")
    request_timeout_s: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="seconds after which an answer ends with what it has"
    )
    drain_timeout_s: float = Field(
        30.0, ge=0, allow_inf_nan=False, description="seconds that SIGTERM leaves to running requests"
    )
    step_timeout_s: float = Field(
        120.0, gt=0, allow_inf_nan=False, description="seconds that a step may take before /health says 503"
    )
    keepalive_s: float = Field(
        10.0, gt=0, allow_inf_nan=False, description="seconds of silence after which a stream sends a comment"
    )
    otlp_endpoint: str | None = Field(
        None, pattern=r"^https?://[^/\s]+", description="address of an OpenTelemetry collector; needs mtplx[otel]"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="how much is logged")
    log_format: Literal["text", "json"] = Field("text", description="lines for people, or a JSON object a line")

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_blanks(cls, value: object) -> object:
        """An empty host listens everywhere and an empty key opens the door; both come from unset shell variables."""
        items = value if isinstance(value, list | tuple) else (value,)
        if any(isinstance(item, str) and not item.strip() for item in items):
            raise PydanticCustomError("blank", "input should not be empty")
        return value

    @field_validator("draft_depth", mode="before")
    @classmethod
    def _read_depth(cls, value: object) -> object:
        """Flags and variables are text; a boolean, which Python counts as a number, is no depth."""
        if isinstance(value, str) and value.isdecimal():
            return int(value)
        return str(value) if isinstance(value, bool) else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _EnvironmentSource(settings_cls)


class Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one sentence, as a ConfigError, and takes no abbreviations.

    Used through `parse`: `parse_args` would print the values of unknown flags, and a mistyped `--api-key` is one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)  # else a new flag could change what an old script means
        super().__init__(*args, **kwargs)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Raises: ConfigError: an argument is unknown, missing or not understood."""
        namespace, unknown = self.parse_known_args(arguments)
        if unknown:
            flags = [argument.partition("=")[0] for argument in unknown if argument.startswith("-")]
            self.error(f"unknown flag {flags[0]}" if flags else f"{unknown[0]!r} is one argument too many")
        return namespace

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def flag_name(field_name: str) -> str:
    return "--" + field_name.replace("_", "-")


def variable_name(field_name: str) -> str:
    return ENV_PREFIX + field_name.upper()


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for every setting, and `--config`. A flag that isn't given leaves no trace in the namespace."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file with settings, such as max_queue = 64; flags win over it"
    )
    for name, field in Settings.model_fields.items():
        kind, choices = _value_type(field.annotation), _choices(field.annotation)
        options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": _help_text(field)}
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            metavars = {int: "N", float: "SECONDS", Path: "FILE"}
            options["metavar"] = "{" + ",".join(choices) + "}" if choices else metavars.get(kind, "TEXT")
        if get_origin(field.annotation) is tuple:
            options["action"] = "append"
        parser.add_argument(flag_name(name), **options)


def resolve_settings(namespace: argparse.Namespace) -> Settings:
    """The settings that flags, environment and file together ask for.

    Raises:
        ConfigError: as `load_settings`.
    """
    given = {name: value for name, value in vars(namespace).items() if name in Settings.model_fields}
    return load_settings(given, namespace.config)


def load_settings(given: Mapping[str, object], config_file: Path | None = None) -> Settings:
    """The settings of `given` field values, then the environment, then `config_file`, then defaults; checked.

    Raises:
        ConfigError: a name is unknown or a value wrong; says which flag, variable or key, never shows a key's text.
    """
    _refuse_unknown_variables(os.environ)
    from_environment = _EnvironmentSource(Settings)()
    from_file = _read_file(config_file) if config_file is not None else {}
    _refuse_unknown_names(given, "setting")
    _refuse_unknown_names(from_file, f"key in {config_file}")
    labels = {name: f"{name} in {config_file}" for name in from_file}
    labels |= {name: variable_name(name) for name in from_environment}
    labels |= {name: flag_name(name) for name in given}
    try:
        settings = Settings(**{**from_file, **from_environment, **given})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise ConfigError(f"{labels[name]}: {_explain(name, first)}", flag_name(name)) from None
    check_settings(settings)
    return settings


def check_settings(settings: Settings) -> None:
    """Refuses settings that contradict each other, as far as that shows without a model.

    Raises:
        ConfigError: two settings can't hold together.
    """
    if settings.runner == "native" and settings.device not in ("auto", "cpu"):
        raise ConfigError(f"--runner native computes on the cpu, not on --device {settings.device}", "--runner")
    if settings.runner == "native" and settings.dtype != "auto":
        raise ConfigError(
            f"--dtype {settings.dtype} is for the torch runner: --runner native takes --quantization",
            "--dtype",
        )
    if settings.runner == "torch" and settings.quantization in ("int8", "int4"):
        raise ConfigError(f"--quantization {settings.quantization} is for the native runner", "--quantization")
    if settings.runner == "torch" and settings.kv_cache_dtype != "auto":
        raise ConfigError("--kv-cache-dtype is for the native runner: --runner torch takes --dtype", "--kv-cache-dtype")


def read_api_keys(settings: Settings) -> tuple[SecretStr, ...]:
    """Every key that clients may use: those of `api_key`, then those of `api_keys_file`; empty when none is asked for.

    Raises:
        ConfigError: the file can't be read or holds no key, or there is a limit for each key and no key.
    """
    path = settings.api_keys_file
    if path is None:
        if settings.max_requests_per_key is not None and not settings.api_key:
            raise ConfigError("--max-requests-per-key needs keys: --api-key, --api-keys-file", "--max-requests-per-key")
        return settings.api_key
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-keys-file {path} can't be read: {_reason(error)}", "--api-keys-file") from None
    keys = tuple(SecretStr(line) for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"--api-keys-file {path} holds no key", "--api-keys-file")
    return settings.api_key + keys


class _EnvironmentSource(EnvSettingsSource):
    """The MTPLX_* variables; a list is written with commas, where pydantic-settings would want JSON."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        return [item.strip() for item in str(value).split(",")]


def _read_file(path: Path) -> dict[str, Any]:
    if not path.is_file():  # the source below would take it for an empty one
        raise ConfigError(f"--config {path} is not a file", "--config")
    try:
        return TomlConfigSettingsSource(Settings, toml_file=path)()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--config {path} can't be read: {_reason(error)}", "--config") from None


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = {variable_name(name) for name in Settings.model_fields} | OTHER_VARIABLES
    for name in environ:
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known:
            raise ConfigError(f"{name} is no variable of mtplx{_suggest(name.upper(), known)}")


def _refuse_unknown_names(values: Mapping[str, object], what: str) -> None:
    for name in values:
        if name not in Settings.model_fields:
            raise ConfigError(f"{name} is no {what}{_suggest(name.replace('-', '_'), set(Settings.model_fields))}")


def _suggest(name: str, known: set[str]) -> str:
    close = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _explain(name: str, error: ErrorDetails) -> str:
    message = error["msg"][0].lower() + error["msg"][1:]
    is_secret = _value_type(Settings.model_fields[name].annotation) is SecretStr
    return message if is_secret else f"{message}, got {error['input']!r}"


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _help_text(field: FieldInfo) -> str:
    text = str(field.description)
    if field.default not in (None, ()):
        shown = {True: "on", False: "off"}[field.default] if isinstance(field.default, bool) else field.default
        text += f" (default: {shown})"
    return text.replace("%", "%%")


def _value_type(annotation: Any) -> Any:
    """The type of one value: T for `T`, `T | None` and `tuple[T, ...]`."""
    if get_origin(annotation) in (Union, types.UnionType, tuple):
        return get_args(annotation)[0]
    return annotation


def _choices(annotation: Any) -> tuple[str, ...]:
    """What the value can be when that is a short list, else nothing."""
    kind = _value_type(annotation)
    if get_origin(kind) is Literal:
        return tuple(str(choice) for choice in get_args(kind))
    return tuple(member.value for member in kind) if isinstance(kind, type) and issubclass(kind, Enum) else ()

"""All settings of a server, declared once: this model gives the flags, the MTPLX_* variables, the file keys and the help.

Precedence: flag, then environment, then `--config` file, then default. Resolved once, frozen, printed at start-up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from mtplx.batching.state import SchedulerMode


class Settings(BaseSettings):
    """Every field is a flag (`--max-queue`), a variable (`MTPLX_MAX_QUEUE`) and a key of the file (`max_queue`)."""

    model_config = SettingsConfigDict(env_prefix="MTPLX_", frozen=True, extra="forbid")

    model: str = Field("smollm2-135m-instruct", description="catalog name, hub id, local folder or .gguf file")
    served_model_name: str | None = Field(None, description="the name clients use; default: the model's own")
    scheduler_mode: SchedulerMode | None = Field(
        None, description="how requests share the model; default: mtp_batch with a head, else ar_batch"
    )
    runner: Literal["auto", "torch", "native"] = Field("auto", description="what computes the logits")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = Field(
        "auto", description="type of weights and cache; auto is float32 on cpu"
    )
    exact: bool = Field(True, description="on cpu, results that don't depend on the batch; --no-exact for speed")
    threads: int | None = Field(None, ge=1, description="CPU threads; default: the physical cores")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    api_key: tuple[SecretStr, ...] = Field((), description="a key that clients must send; repeatable")
    api_keys_file: Path | None = Field(None, description="a file with one key a line")
    cors_origin: tuple[str, ...] = Field((), description="an origin that browsers may call from; repeatable")
    max_model_len: int | None = Field(None, ge=8, description="most tokens of prompt and answer; default: the model's")
    kv_cache_tokens: int | None = Field(None, ge=16, description="size of the cache in tokens; default: by free memory")
    decode_batch_max: int | None = Field(
        None, ge=1, description="most sequences running at once; default 16, cooperative: the chunk size"
    )
    max_queue: int = Field(128, ge=0, description="most sequences waiting; more get 503")
    prefill_chunk_tokens: int | None = Field(
        None, ge=1, description="most prompt tokens in one step; default 64 on cpu, else 512"
    )
    draft_depth: int = Field(0, ge=0, le=8, description="tokens guessed ahead; only 0 until heads exist")
    drain_timeout_s: float = Field(30.0, ge=0, description="seconds that SIGTERM leaves to running requests")
    keepalive_s: float = Field(10.0, gt=0, description="seconds of silence after which a stream sends a comment")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="how much is logged")

"""What the HTTP side is given at start-up: settings, the engine's streams, text, and facts to report."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import SecretStr

from mtplx.config import Settings
from mtplx.model.spec import ModelSpec, RunnerInfo
from mtplx.server.stream import Streams
from mtplx.telemetry.record import Observer
from mtplx.telemetry.stages import StageRecorder
from mtplx.text.answer_format import AnswerFormat
from mtplx.text.chat import ChatTemplate
from mtplx.text.grammar import GrammarCompiler
from mtplx.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """One server's fixed parts; `created` is in Unix seconds."""

    settings: Settings
    api_keys: tuple[SecretStr, ...]  # none: anybody may ask
    streams: Streams
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    answer_format: AnswerFormat
    grammars: GrammarCompiler
    spec: ModelSpec
    runner_info: RunnerInfo
    recorder: StageRecorder
    model_name: str
    created: int
    version: str
    fingerprint: str
    observers: tuple[Observer, ...] = ()  # that hear of each request's end

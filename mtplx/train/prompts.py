"""Where answers begin: the model's chat template around a prompt, and prompts from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mtplx.errors import ConfigError, RequestError
from mtplx.text.chat import ChatTemplate
from mtplx.text.tokenizer import Tokenizer
from mtplx.train.text import Frame

_MARK = "\N{SNOWMAN}the prompt\N{SNOWMAN}"  # in no template


def make_frame(template: ChatTemplate, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> Frame:
    """The template with one message of a user, cut at the message's text.

    A model without a template, or with one that doesn't hold the text as it is, writes on from its first token.

    Raises:
        ConfigError: it has no first token either.
    """
    if template.is_present:
        before, mark, after = template.render([{"role": "user", "content": _MARK}]).partition(_MARK)
        if mark:
            return Frame(tuple(_encode(tokenizer, before)), tuple(_encode(tokenizer, after)), eos_ids)
    first = tokenizer.bos_id if tokenizer.bos_id is not None else min(eos_ids, default=None)
    if first is None:
        raise ConfigError("this model has neither a chat template nor a first token to write from", "MODEL")
    return Frame((first,), (), eos_ids)


def read_prompts(path: Path, template: ChatTemplate, tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids up to the answer, of each line: `{"messages": [..]}` as in a chat request, or `{"prompt": "text"}`.

    Raises:
        ConfigError: the file can't be read, or a line is something else; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {error}", "--data") from error
    prompts = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                prompts.append(_encode(tokenizer, _prompt_text(json.loads(line), template)))
            except (ValueError, RequestError) as error:
                raise ConfigError(f"{path}, line {number}: {error}", "--data") from error
    return prompts


def _prompt_text(line: Any, template: ChatTemplate) -> str:
    if isinstance(line, dict):
        messages, prompt = line.get("messages"), line.get("prompt")
        if isinstance(messages, list):
            return template.render(messages)
        if isinstance(prompt, str) and prompt:
            return template.render([{"role": "user", "content": prompt}]) if template.is_present else prompt
    raise ValueError('a line must be {"messages": [...]} or {"prompt": "text"}')


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)

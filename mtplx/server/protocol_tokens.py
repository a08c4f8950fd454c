"""The bodies of POST /tokenize and POST /detokenize, in vLLM's shapes."""

from __future__ import annotations

from pydantic import Field

from mtplx.errors import RequestError
from mtplx.server.protocol import StrictModel, TokenIds
from mtplx.server.protocol_chat import Messages


class TokenizeRequest(StrictModel):
    """A text, or a conversation as the chat template writes it."""

    model: str | None = Field(None, description="the served model's name, which is the default; another is 404")
    prompt: str | None = Field(None, description="a text; this or messages")
    messages: Messages | None = Field(None, description="a conversation, as in chat completions; this or prompt")
    add_special_tokens: bool | None = Field(
        None,
        description="what the tokenizer adds around a text, such as a bos token; default: for a prompt, not for "
        "messages, whose template writes it",
    )
    return_token_strs: bool | None = Field(None, description="the tokens as the vocabulary spells them, too")

    @property
    def adds_special_tokens(self) -> bool:
        return self.messages is None if self.add_special_tokens is None else self.add_special_tokens

    def check(self) -> None:
        """Raises RequestError unless there is either a text or a conversation."""
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("give either prompt or messages", "prompt")


class DetokenizeRequest(StrictModel):
    """Token ids to be made a text."""

    model: str | None = Field(None, description="the served model's name, which is the default; another is 404")
    tokens: TokenIds = Field(description="at most as many as the context holds; special tokens are spelled out")

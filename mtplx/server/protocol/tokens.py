"""The bodies of POST /tokenize and POST /detokenize, in vLLM's shapes."""

from __future__ import annotations

from pydantic import Field
from pydantic_core import to_json

from mtplx.errors import RequestError
from mtplx.server.protocol.chat import ChatCompletionRequest, Messages, TemplateVariables
from mtplx.server.protocol.strict import StrictModel, TokenIds
from mtplx.server.protocol.tools import Tools

_OF_MESSAGES = ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
_OF_A_CHAT = {"messages", "add_special_tokens", *_OF_MESSAGES}


class TokenizeRequest(StrictModel):
    """A text, or a conversation as the chat template writes it."""

    model: str | None = Field(None, description="the served model's name, which is the default; another is 404")
    prompt: str | None = Field(None, description="a text; this or messages")
    messages: Messages | None = Field(None, description="a conversation, as in chat completions; this or prompt")
    tools: Tools | None = Field(None, description="as in chat completions; with messages alone")
    chat_template_kwargs: TemplateVariables | None = Field(
        None, description="as in chat completions; with messages alone"
    )
    add_generation_prompt: bool | None = Field(None, description="as in chat completions; with messages alone")
    continue_final_message: bool | None = Field(None, description="as in chat completions; with messages alone")
    add_special_tokens: bool | None = Field(
        None,
        description="what the tokenizer adds around a text, such as a bos token; default: for a prompt, not for "
        "messages, whose template writes it",
    )
    return_token_strs: bool | None = Field(None, description="the tokens as the vocabulary spells them, too")

    def check(self) -> None:
        """Raises RequestError unless there is either a text or a conversation, and nothing that goes with the other."""
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("give either prompt or messages", "prompt")
        for name in _OF_MESSAGES:
            if self.messages is None and getattr(self, name) is not None:
                raise RequestError(f"{name} goes with messages", name)

    def chat(self, model: str) -> ChatCompletionRequest:
        """The request of chat completions that is asked with the same prompt."""
        fields = self.model_dump(include=_OF_A_CHAT, exclude_unset=True)
        return ChatCompletionRequest.model_validate_json(to_json({"model": model, **fields}))


class DetokenizeRequest(StrictModel):
    """Token ids to be made a text."""

    model: str | None = Field(None, description="the served model's name, which is the default; another is 404")
    tokens: TokenIds = Field(description="at most as many as the context holds; special tokens are spelled out")

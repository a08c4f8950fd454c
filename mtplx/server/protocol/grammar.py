"""The fields that say what an answer must look like, in OpenAI's words and in vLLM's, and the one grammar they mean."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import FailFast, Field
from typing_extensions import TypeAliasType

from mtplx.errors import RequestError
from mtplx.model.spec import ModelSpec
from mtplx.sampling_params import Grammar, SamplingParams
from mtplx.server.protocol.generation import GenerationRequest
from mtplx.server.protocol.strict import Accepted, StrictModel, Worded

MAX_GRAMMAR_CHOICES = 1024
ANY_OBJECT = '{"type":"object"}'

JsonSchema = Annotated[dict[str, Any] | str, Worded("must be a JSON Schema: an object, or its text")]
GrammarChoices = TypeAliasType(
    "GrammarChoices", Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_GRAMMAR_CHOICES), FailFast()]
)


class JsonSchemaFormat(StrictModel):
    """OpenAI's wrapping of a schema."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$"), Accepted("names the schema for the client")]
    description: Annotated[str | None, Accepted("the model reads the messages only")] = None
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="the answer is JSON that it describes; default: any object"
    )
    strict: Annotated[bool | None, Accepted("a schema is always kept to")] = None


class ResponseFormat(StrictModel):
    """OpenAI's word for what the answer must be."""

    type: Literal["text", "json_object", "json_schema"] = Field(
        description="`json_object`: the answer is a JSON object; `json_schema`: it is what the schema describes"
    )
    json_schema: JsonSchemaFormat | None = Field(None, description="goes with that type, and only with it")

    def grammar(self) -> Grammar | None:
        """Raises: RequestError."""
        path = "response_format.json_schema"
        if self.type == "json_schema" and self.json_schema is None:
            raise RequestError(f"{path} is required with the type json_schema", path, "missing_required_parameter")
        if self.type != "json_schema" and self.json_schema is not None:
            raise RequestError(f"{path} goes with the type json_schema, and with no other", path)
        if self.type == "text":
            return None
        schema = self.json_schema.schema_ if self.json_schema else None
        if schema is None:
            return Grammar("json_schema", ANY_OBJECT, "response_format")
        return json_grammar(schema, f"{path}.schema")


class StructuredOutputs(StrictModel):
    """vLLM's word for the same and more; exactly one field is given."""

    json_: JsonSchema | None = Field(None, alias="json", description="the answer is JSON that this schema describes")
    regex: str | None = Field(None, description="the whole answer matches this expression")
    choice: GrammarChoices | None = Field(None, description="the answer is one of these texts")
    grammar: str | None = Field(None, description="the answer is a text of this grammar, in Lark or GBNF")
    json_object: bool | None = Field(None, description="the answer is a JSON object")

    def to_grammar(self) -> Grammar:
        """Raises: RequestError."""
        wished = list(_wished("structured_outputs.", self.json_, self.regex, self.choice, self.grammar))
        if self.json_object:
            wished.append(Grammar("json_schema", ANY_OBJECT, "structured_outputs.json_object"))
        grammar = only_one(wished)
        if grammar is None:
            raise RequestError(
                "structured_outputs needs one of json, regex, choice, grammar and json_object", "structured_outputs"
            )
        return grammar


class StructuredRequest(GenerationRequest):
    """What both endpoints take to say what the answer must be: one of it, or nothing."""

    structured_outputs: StructuredOutputs | None = Field(None, description="what the answer must be")
    guided_json: JsonSchema | None = Field(None, description="the same as structured_outputs.json")
    guided_regex: str | None = Field(None, description="the same as structured_outputs.regex")
    guided_choice: GrammarChoices | None = Field(None, description="the same as structured_outputs.choice")
    guided_grammar: str | None = Field(None, description="the same as structured_outputs.grammar")

    def wished_grammars(self) -> Iterator[Grammar | None]:
        """All that it says of it. Raises: RequestError."""
        if self.structured_outputs is not None:
            yield self.structured_outputs.to_grammar()
        yield from _wished("guided_", self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)

    def to_sampling_params(self, spec: ModelSpec, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        params = super().to_sampling_params(spec, max_tokens=max_tokens, logprobs=logprobs)
        return replace(params, grammar=only_one(self.wished_grammars()))


def only_one(grammars: Iterable[Grammar | None]) -> Grammar | None:
    """The one that is there.

    Raises:
        RequestError: there are two; it names the later one.
    """
    found = [grammar for grammar in grammars if grammar is not None]
    if len(found) > 1:
        first, second = found[0].param, found[1].param
        raise RequestError(f"{first} and {second} both say what the answer must be: give one", second)
    return found[0] if found else None


def json_grammar(schema: dict[str, Any] | str, param: str) -> Grammar:
    """The texts that a JSON Schema describes; as a string it is JSON already."""
    if isinstance(schema, str):
        return Grammar("json_schema", schema, param)
    try:
        source = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (RecursionError, ValueError) as error:
        raise RequestError(f"{param} is nested too deeply, or holds a number that JSON doesn't have", param) from error
    return Grammar("json_schema", source, param)


def choice_grammar(choices: Iterable[str], param: str) -> Grammar:
    """These texts and no other."""
    return Grammar("lark", "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices), param)


def _wished(
    prefix: str,
    schema: dict[str, Any] | str | None,
    regex: str | None,
    choices: Iterable[str] | None,
    grammar: str | None,
) -> Iterator[Grammar]:
    """Those that there are, of fields whose names begin with `prefix`."""
    if schema is not None:
        yield json_grammar(schema, f"{prefix}json")
    if regex is not None:
        yield Grammar("regex", regex, f"{prefix}regex")
    if choices is not None:
        yield choice_grammar(choices, f"{prefix}choice")
    if grammar is not None:
        yield Grammar("lark", grammar, f"{prefix}grammar")

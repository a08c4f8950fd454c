"""Ten JSON Schemas of rising difficulty, each bounded, so that an answer at random comes to its end."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def record(properties: dict[str, Schema], *, optional: tuple[str, ...] = (), **more: Any) -> Schema:
    """A closed object; what isn't optional is required."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


LINKED = record({"value": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {"$ref": "#/$defs/link"}})
SHAPES = [
    record({"kind": {"const": "circle"}, "radius": {"type": "number", "minimum": 0.5, "maximum": 20}}),
    record({"kind": {"const": "box"}, "sides": {"type": "array", "items": {"enum": [1, 2, 4]}, "maxItems": 3}}),
]

SCHEMAS: dict[str, Schema] = {
    "boolean": {"type": "boolean"},
    "enum": {"enum": ["red", "green", 3, None, 'a "quoted" \\ one', "größer"]},
    "bounded integers": record({"low": {"type": "integer", "minimum": -5, "maximum": 1200}, "high": {"enum": [7, 77]}}),
    "numbers": record({"share": {"type": "number", "minimum": 0, "maximum": 1}, "more": {"type": "boolean"}}),
    "pattern": record({"code": {"type": "string", "pattern": "^[A-Z]{2,3}-[0-9]{4}$"}, "unit": {"const": "µm"}}),
    "optional fields": record(
        {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"type": "null"}, "c": {"enum": ["x", "y"]}},
        optional=("a", "b", "c"),
    ),
    "bounded arrays": {
        "type": "array",
        "items": record({"name": {"type": "string", "minLength": 1, "maxLength": 4}}),
        "minItems": 2,
        "maxItems": 3,
    },
    "nested objects": record(
        {"who": record({"name": record({"first": {"type": "string", "maxLength": 6}}), "age": {"enum": [1, 20]}})}
    ),
    "one of several": record({"shape": {"anyOf": SHAPES}, "note": {"type": "string", "pattern": "^[à-þ]{1,3}$"}}),
    "recursion": {
        "$ref": "#/$defs/node",
        "$defs": {"node": LINKED, "link": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
    },
}

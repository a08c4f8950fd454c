"""The functions that a model may call, as a request declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Function:
    """One function; `parameters` is the JSON schema of its arguments, an object."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    def for_template(self) -> dict[str, Any]:
        """The function as chat templates know it."""
        described = {} if self.description is None else {"description": self.description}
        return {
            "type": "function",
            "function": {"name": self.name, **described, "parameters": dict(self.parameters)},
        }


Functions = Mapping[str, Function]  # by name

"""JSON Schemas that the declarations of operations are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

NAME: Final = {"type": "string", "minLength": 1}
NAMES: Final = {"type": "array", "items": NAME}
BYTES: Final = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}(==|[A-Za-z0-9+/]=))?$",
}


def schema_named(name: str) -> dict[str, Any]:
    """Returns the reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def object_schema(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    """Returns the schema of an object that has these members and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}

"""How a model gets the schema of the answer: natively (the provider enforces it), as a tool to call, or in words.

`auto` is the best mode that the model's profile allows. It is the native mode for the providers below, if nothing else is offered to call and
the schema uses only features that all of them support. Otherwise it is a tool; in words if the model calls no tools. With tools beside it, or
another schema, a provider may refuse the whole request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from detent.core.errors import ConfigError

Mode = Literal["native", "tool", "prompted"]

NATIVE = ("openai", "azure", "anthropic", "google", "google-cloud")
"""Providers whose native mode `auto` uses. Your own server is not among them: its handling of schemas is unknown."""
_DEEPEST = 40
_TAKEN = frozenset(
    (
        "$defs",
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "default",
        "description",
        "enum",
        "items",
        "properties",
        "required",
        "title",
        "type",
    )
)


def mode_for(wanted: str, model: Any, schema: dict[str, Any], *, offers: bool) -> Mode:
    """Return the mode in which `model` gets `schema`. `offers`: it also gets tools or control actions."""
    if wanted != "auto":
        return cast("Mode", wanted)
    profile = model.profile
    if (usual := profile.get("default_structured_output_mode", "tool")) != "tool" and not _why_not(usual, model, offers=offers):
        return usual
    if profile.get("supports_json_schema_output") and model.system in NATIVE and not offers and _plain(schema, schema):
        return "native"
    if profile.get("supports_tools", True):
        return "tool"
    return "native" if profile.get("supports_json_schema_output") else "prompted"


def refuse_mode(wanted: str, model: Any, name: str, *, offers: bool) -> None:
    """Raise `ConfigError` for a mode that the model called `name` cannot do."""
    if wanted != "auto" and (why := _why_not(wanted, model, offers=offers)):
        raise ConfigError(
            f"output_mode is {wanted!r}, but model {name!r} {why}; use output_mode = {_instead(wanted, model)!r}, or leave it out"
        )


def refuse_mode_of_text(wanted: str, name: str) -> None:
    """Raise `ConfigError` for a mode that a model that only writes text cannot use: its schema is put in words."""
    if wanted in ("native", "tool"):
        raise ConfigError(
            f"output_mode is {wanted!r}, but model {name!r} only writes text and gets the schema in words; "
            "use output_mode = 'prompted', or leave it out"
        )


def _why_not(mode: str, model: Any, *, offers: bool) -> str:
    profile = model.profile
    if mode == "native" and not profile.get("supports_json_schema_output"):
        return "takes no JSON Schema natively"
    if mode == "native" and offers and not profile.get("google_supports_tool_combination", True):
        return "takes a JSON Schema natively only where it is offered no tools and no actions"
    if mode == "tool" and not profile.get("supports_tools", True):
        return "calls no tools"
    return ""


def _instead(wanted: str, model: Any) -> str:
    return "tool" if wanted != "tool" and model.profile.get("supports_tools", True) else "prompted"


def _plain(part: Any, root: Mapping[str, Any], inside: tuple[str, ...] = ()) -> bool:
    """Whether a schema uses only features that every provider of `NATIVE` supports: objects of named fields, lists, choices, no recursion."""
    if not isinstance(part, dict) or len(inside) > _DEEPEST:
        return False
    said = cast("dict[str, Any]", part)
    reference, kind = said.get("$ref"), said.get("type")
    if not set(said) <= _TAKEN or said.get("additionalProperties", False) is not False:
        return False
    if not (reference or kind or "anyOf" in said or "enum" in said or "const" in said) or isinstance(kind, list):
        return False
    if reference is not None:
        name = str(reference).removeprefix("#/$defs/")
        defined: Any = root.get("$defs")
        found: Any = cast("dict[str, Any]", defined).get(name) if isinstance(defined, dict) else None
        return name not in inside and _plain(found, root, (*inside, name))
    inner: list[Any] = [said["items"]] if "items" in said else []
    inner += cast("list[Any]", said["anyOf"]) if isinstance(said.get("anyOf"), list) else []
    inner += cast("dict[str, Any]", said["properties"]).values() if isinstance(said.get("properties"), dict) else []
    return (kind != "array" or "items" in said) and all(_plain(one, root, (*inside, "")) for one in inner)

"""The JSON Schema (draft 2020-12) of a program's YAML files, for editors that check them."""

import json
from contextlib import suppress
from typing import Any

from onmt_lite.config.help import description
from onmt_lite.config.option import META_NAMES, Foreign, Option
from onmt_lite.config.sources import Program

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
BOUNDS = {"min": "minimum", "max": "maximum", "above": "exclusiveMinimum"}


def json_schema(program: Program) -> str:
    """Return the schema as JSON.  It takes the values that the program takes, except that in JSON
    5.0 is a whole number, too."""
    options = program.options.items()
    known = {name: _property(option) for name, option in options if name not in META_NAMES}
    for name, other in program.foreign.items():
        if name in known:
            known[name] = _with_foreign(known[name], other)
        elif other.renamed:
            known[name] = {**known[other.renamed], "description": f"{other.says}."}
        else:
            known[name] = _foreign(other, only_off=other.refused or name in META_NAMES)
    schema = {
        "$schema": DRAFT,
        "title": f"Options of {program.name}",
        "type": "object",
        "additionalProperties": False,
        "properties": known,
    }
    return json.dumps(schema, ensure_ascii=False, indent=2)


def _property(option: Option) -> Schema:
    """null is as if the line were not there."""
    shapes = _shapes(option)
    if option.many:
        shapes.append({"type": "array", "items": _either(shapes[:])})
    found = {"description": description(option, with_default=False)}
    if option.default not in (None, ()):
        found["default"] = option.default
    return {**found, **_either([*shapes, {"type": "null"}])}


def _shapes(option: Option) -> list[Schema]:
    """The types of one value."""
    if option.choices:
        # YAML reads true if a choice is "true", and 20 for "20"
        switches = [word == "true" for word in option.choices if word in ("true", "false")]
        numbers = [int(word) for word in option.choices if word.isdecimal()]
        return [{"enum": [*option.choices, *switches, *numbers]}]
    found: Schema = {"type": TYPES[option.kind]}
    found |= {BOUNDS[key]: bound for key, bound in option.bounds.items() if bound is not None}
    if option.kind is str:
        found["pattern"] = f"^({option.form[0]})$" if option.form[1] else "^[^\\u0000]*$"
    return [found, {"type": "object"}] if option.table else [found]


def _foreign(other: Foreign, only_off: bool) -> Schema:
    """An option of another program: any value, or only those that ask for nothing."""
    found: Schema = {"description": f"An option of OpenNMT-py: {other.says or 'taken'}."}
    return {**found, "enum": _values(other)} if only_off else found


def _with_foreign(own: Schema, other: Foreign) -> Schema:
    """An option of ours for which another program has values that ask for nothing."""
    return {**own, **_either([*own.pop("anyOf"), {"enum": _values(other)}])}


def _values(other: Foreign) -> list[Any]:
    """How YAML may write the words: numbers, switches, empty lists and lists of one too."""
    found: list[Any] = [None, True, "true"] if other.switch else [None]
    for word in other.off or ():
        found.append(word)
        if word in ("true", "false"):
            found.append(word == "true")
        elif word == "":
            found.append([])
        else:
            with suppress(ValueError):
                found.append(json.loads(word))
    return [*found, *([value] for value in found if value not in (None, []))]


def _either(shapes: list[Schema]) -> Schema:
    return {"anyOf": shapes} if len(shapes) > 1 else shapes[0]

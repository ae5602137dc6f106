"""Checks JSON against JSON schemas, which clients wrote.

A schema may take any time (alternatives within alternatives, patterns that backtrack): call this
only in processes that can be killed, never on an event loop or in one of its threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator


MAX_SHOWN = 200
"""Characters of an error."""


class UnusableSchema(Exception):
    """It can't be decided whether a value follows the schema; the message says why."""


def validator_of(schema: Any) -> Draft202012Validator:
    """A validator, which fetches nothing. `format` is not checked."""
    from jsonschema import Draft202012Validator  # few processes need it
    from referencing import Registry

    return Draft202012Validator(schema, registry=Registry())


def checked_validator_of(schema: Any) -> Draft202012Validator:
    """As `validator_of`, of a schema that nobody has checked.

    Raises:
        UnusableSchema: it is no JSON schema.
    """
    from jsonschema import SchemaError

    validator = validator_of(schema)
    try:
        validator.check_schema(schema)
    except (SchemaError, RecursionError) as error:
        raise UnusableSchema(str(error)[:MAX_SHOWN]) from None
    return validator


def follows(text: str, validator: Draft202012Validator) -> bool:
    """Whether the text is JSON that follows the schema.

    Raises:
        UnusableSchema: the schema refers to something outside of it, the schema or the text nests
            too deeply, or a number is too large to be compared.
    """
    from referencing.exceptions import Unresolvable

    try:
        return bool(validator.is_valid(msgspec.json.decode(text)))
    except (msgspec.DecodeError, UnicodeError):
        return False
    except (Unresolvable, RecursionError, ArithmeticError) as error:
        raise UnusableSchema(str(error)[:MAX_SHOWN]) from None

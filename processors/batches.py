"""How the values of many records reach a function in one call (``batch=``)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from onceflow.processors.declare.signatures import Argument
from onceflow.processors.values import Decoder


class Form(enum.Enum):
    """How a function gets the values of many records."""

    LIST = "list"
    RECORD_BATCH = "Arrow record batch"
    ARRAY = "Arrow array"


class Field(enum.Enum):
    """The part of each record that a parameter gets."""

    VALUE = "value"
    KEY = "key"
    HEADERS = "headers"
    ROW = "row of a table"


@dataclass(frozen=True, slots=True)
class Part:
    """What one parameter of a batch function gets.

    Attributes:
        field: The part of each record.
        form: How the parameter gets it.
        decode: Decoder of single values or keys; None if none is needed.
        schema: Arrow schema from ``Annotated[pa.RecordBatch, schema]``; None infers one.
        argument: The parameter that gets rows of a table; None for the others.
    """

    field: Field
    form: Form = Form.LIST
    decode: Decoder | None = None
    schema: object = None
    argument: Argument | None = None

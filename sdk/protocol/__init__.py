"""Kafka's wire protocol: the only place in onceflow where bytes become messages and back.

Import from the modules: `schema` (the language of declarations), `api` (the messages), `frame`,
`error_codes`, `records`, `compression`. Nothing here does I/O.
"""

__all__: list[str] = []

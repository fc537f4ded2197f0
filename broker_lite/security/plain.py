"""SASL PLAIN on the broker's side (RFC 4616): finds the user of a token.

It checks name and password. Passwords are compared in constant time. They are sent unencrypted
unless the connection has TLS.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from onceflow.sdk.errors import ConfigError

CREDENTIALS_SETTING = "onceflow.sasl.plain.credentials"


class AuthenticationFailed(Exception):
    """The token is malformed or its password is wrong; the text may be shown to the peer."""


def parse_credentials(text: str, setting: str = CREDENTIALS_SETTING) -> dict[str, str]:
    """Read ``NAME:PASSWORD,NAME:PASSWORD``.

    Raises:
        ConfigError: An entry without a name or password.
    """
    credentials: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, colon, password = entry.partition(":")
        if not (name and colon and password):
            raise ConfigError(setting, "[hidden]", "give NAME:PASSWORD for each user")
        credentials[name] = password
    return credentials


def authenticate(token: bytes, credentials: Mapping[str, str]) -> str:
    """Check a PLAIN token.

    Args:
        token: ``[authorization id] NUL name NUL password`` in UTF-8.
        credentials: Passwords by name.

    Returns:
        The name.

    Raises:
        AuthenticationFailed: With a text that does not tell whether the name exists.
    """
    parts = token.split(b"\0")
    if len(parts) != 3:
        raise AuthenticationFailed("A PLAIN token has three parts separated by NUL.")
    try:
        authorization_id, name, password = (part.decode("utf-8") for part in parts)
    except UnicodeDecodeError:
        raise AuthenticationFailed("A PLAIN token is UTF-8 text.") from None
    if not name or not password:
        raise AuthenticationFailed("A PLAIN token needs a name and a password.")
    if authorization_id not in ("", name):
        raise AuthenticationFailed("The authorization id differs from the name.")
    known = credentials.get(name, "")
    same = hmac.compare_digest(known.encode("utf-8"), password.encode("utf-8"))
    if not (same and known):
        raise AuthenticationFailed("Authentication failed: Invalid username or password")
    return name

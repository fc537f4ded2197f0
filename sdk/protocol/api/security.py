"""Messages of SASL: choice of a mechanism and exchange of its tokens (KIP-43, KIP-152, KIP-368).


SaslHandshake (key 17), versions 0-1, never flexible:
    1 tokens are sent in SaslAuthenticate instead of bare frames
SaslAuthenticate (key 36), versions 0-2, flexible from 2:
    1 session lifetime (KIP-368)
"""

from __future__ import annotations

from onceflow.sdk.protocol.schema import Request, Response, array, bytes_, int16, int64, string


class SaslHandshakeRequest(Request, api_key=17, versions="0-1"):
    """Choose a SASL mechanism."""

    mechanism: str = string()


class SaslHandshakeResponse(Response, api_key=17, versions="0-1"):
    """Whether the broker offers the mechanism, and which ones it offers."""

    error_code: int = int16(default=0)
    mechanisms: list[str] = array(string, default=[])


class SaslAuthenticateRequest(Request, api_key=36, versions="0-2", flexible="2+"):
    """A token of the chosen mechanism."""

    auth_bytes: bytes = bytes_()


class SaslAuthenticateResponse(Response, api_key=36, versions="0-2", flexible="2+"):
    """The broker's token, or why the login failed."""

    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    auth_bytes: bytes = bytes_(default=b"")
    session_lifetime_ms: int = int64("1+", default=0, ignorable=True)

"""Who a peer is: the broker's side of SASL."""

from onceflow.broker_lite.security.plain import (
    MECHANISM,
    AuthenticationFailed,
    authenticate,
    parse_credentials,
)

__all__ = ["MECHANISM", "AuthenticationFailed", "authenticate", "parse_credentials"]

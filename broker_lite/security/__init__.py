"""Who a peer is and what it may do: the broker's side of TLS, SASL and ACLs."""

from onceflow.broker_lite.security.authorizer import Authorizer
from onceflow.broker_lite.security.listener_security import ANONYMOUS, ListenerSecurity
from onceflow.broker_lite.security.plain import AuthenticationFailed
from onceflow.broker_lite.security.scram_users import ScramUsers

__all__ = ["ANONYMOUS", "AuthenticationFailed", "Authorizer", "ListenerSecurity", "ScramUsers"]

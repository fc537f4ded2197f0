"""How a listener authenticates its clients, from its settings: TLS, mechanisms, lifetimes.

It checks whether the settings of a listener fit together, and makes the exchanges that authenticate
its clients. The dispatcher decides which requests a client may send before.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, cast

from onceflow.broker_lite.settings.listeners import Listener, ssl_client_auth
from onceflow.broker_lite.settings.security_settings import Value
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.protocol.scram import NONCE_BYTES

if TYPE_CHECKING:
    import ssl

    from onceflow.broker_lite.security.exchanges import SaslExchange
    from onceflow.broker_lite.security.jwks import JwksKeys
    from onceflow.broker_lite.security.scram_users import ScramUsers
    from onceflow.broker_lite.security.tokens import TokenRules
    from onceflow.broker_lite.settings.broker_config import BrokerConfig

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.security")

ANONYMOUS = "User:ANONYMOUS"

_JAAS_OPTION = r'([\w.\-]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s";]+))'


class Owner(Protocol):
    """The broker, as far as authentication needs it."""

    @property
    def config(self) -> BrokerConfig:
        """Settings in force."""
        ...

    @property
    def scram_users(self) -> ScramUsers:
        """Users of SASL SCRAM."""
        ...


class ListenerSecurity:
    """How one listener authenticates its clients.

    Args:
        broker: Its settings, and the users of SCRAM.
        listener: The listener.

    Attributes:
        mechanisms: SASL mechanisms, in the order of the setting; empty without SASL.
        tls_context: For new connections; None without TLS.
        jwks: Keys of OAUTHBEARER's tokens; None if they are not needed.
        jwks_refresh_ms: Time after which they are read again.

    Raises:
        ConfigError: The settings do not fit together.
    """

    def __init__(self, broker: Owner, listener: Listener) -> None:
        self._broker = broker
        self._config = config = broker.config
        self._listener = listener
        # Random at each start, so that salts of unknown users differ between brokers.
        self._secret = secrets.token_bytes(32)
        self.mechanisms: tuple[str, ...] = ()
        self.tls_context: ssl.SSLContext | None = None
        self._tls_files: tuple[object, ...] = ()
        self.jwks: JwksKeys | None = None
        self.jwks_refresh_ms: int = config.sasl_oauthbearer_jwks_endpoint_refresh_ms
        self._locations: dict[str, str] = {}
        self._plain_users: Mapping[str, str] = {}
        self._token_rules: TokenRules | None = None
        if listener.protocol.uses_tls:
            from onceflow.broker_lite.security.principal_rules import parse_rules
            from onceflow.broker_lite.security.stores import file_marks

            # They are read again later, when the process may have another working directory.
            for name in ("ssl.keystore.location", "ssl.truststore.location"):
                if location := str(self._value(name)):
                    self._locations[name] = os.path.abspath(location)
            self._client_auth = ssl_client_auth(config, listener.name, listener.protocol)
            # Before the files are read, so that a replacement meanwhile is noticed.
            self._tls_files = file_marks(self._value)
            self.tls_context = self._make_context()
            self._rules = parse_rules(str(self._value("ssl.principal.mapping.rules")))
        if listener.protocol.uses_sasl:
            self._set_up_sasl()

    def _value(self, name: str, mechanism: str = "") -> Value:
        found = self._locations.get(name)
        return found or self._config.listener_value(self._listener.name, name, mechanism)

    def _make_context(self) -> ssl.SSLContext:
        from onceflow.broker_lite.security.stores import server_context

        return server_context(self._value, self._client_auth)

    @property
    def reads_tls_files(self) -> bool:
        """Whether keys or certificates come from files, which may be replaced."""
        return bool(self._tls_files)

    @property
    def tls_files_changed(self) -> bool:
        """Whether one of these files has changed since it was last read."""
        from onceflow.broker_lite.security.stores import file_marks

        return file_marks(self._value) != self._tls_files

    def renew_tls(self) -> None:
        """Read keys and certificates again, for new connections; may run in a thread.

        Files that cannot be used are logged, and the current key and certificates stay in use.
        """
        from onceflow.broker_lite.security.stores import file_marks

        self._tls_files = file_marks(self._value)
        try:
            self.tls_context = self._make_context()
        except ConfigError as error:
            logger.warning("%s keeps its present certificate: %s", self._listener, error)
        else:
            logger.info("%s has read its key and certificates again", self._listener)

    def _set_up_sasl(self) -> None:
        setting = "sasl.enabled.mechanisms"
        self.mechanisms = cast("tuple[str, ...]", self._value(setting))
        if not self.mechanisms:
            raise ConfigError(setting, "", f"give the mechanisms of {self._listener.name}")
        if "PLAIN" in self.mechanisms:
            self._plain_users = self._find_plain_users()
        if "OAUTHBEARER" in self.mechanisms:
            self._token_rules = self._make_token_rules()

    def _find_plain_users(self) -> dict[str, str]:
        from onceflow.broker_lite.security.plain import parse_credentials

        users = parse_credentials(str(self._value("onceflow.sasl.plain.credentials", "PLAIN")))
        jaas = self._value("sasl.jaas.config", "PLAIN")
        if jaas is not None:
            found = [
                (key, quoted or bare) for key, quoted, bare in re.findall(_JAAS_OPTION, str(jaas))
            ]
            users |= {
                key.removeprefix("user_"): re.sub(r"\\(.)", r"\1", password)
                for key, password in found
                if key.startswith("user_")
            }
        if not users:
            raise ConfigError(
                "sasl.enabled.mechanisms",
                "PLAIN",
                "set onceflow.sasl.plain.credentials too, or no client can connect",
            )
        return users

    def _make_token_rules(self) -> TokenRules:
        from onceflow.broker_lite.security.jwks import JwksKeys
        from onceflow.broker_lite.security.tokens import TokenRules

        def value(name: str) -> Value:
            return self._value(name, "OAUTHBEARER")

        url = str(value("sasl.oauthbearer.jwks.endpoint.url"))
        unsecured = bool(value("onceflow.sasl.oauthbearer.unsecured"))
        if bool(url) == unsecured:
            raise ConfigError(
                "sasl.oauthbearer.jwks.endpoint.url",
                url,
                "say where the keys are that sign tokens; for development, leave it out and set "
                "onceflow.sasl.oauthbearer.unsecured=true: everybody may then be anyone",
            )
        if unsecured:
            logger.warning("%s takes unsigned tokens", self._listener)
        else:
            self.jwks = JwksKeys(url)
        return TokenRules(
            verify=self.jwks.verify if self.jwks is not None else None,
            audiences=frozenset(
                cast("tuple[str, ...]", value("sasl.oauthbearer.expected.audience"))
            ),
            issuer=str(value("sasl.oauthbearer.expected.issuer")),
            skew_ms=cast("int", value("sasl.oauthbearer.clock.skew.seconds")) * 1000,
            sub_claim=str(value("sasl.oauthbearer.sub.claim.name")),
            scope_claim=str(value("sasl.oauthbearer.scope.claim.name")),
        )

    def begin(self, mechanism: str) -> SaslExchange:
        """Return a new exchange of one of the mechanisms."""
        from onceflow.broker_lite.security import exchanges
        from onceflow.broker_lite.security.tokens import TokenExchange

        if mechanism == "PLAIN":
            return exchanges.PlainExchange(self._plain_users)
        if mechanism == "OAUTHBEARER":
            assert self._token_rules is not None
            return TokenExchange(
                self._token_rules, lambda why: logger.warning("a token was refused: %s", why)
            )
        nonce = secrets.token_bytes(NONCE_BYTES)
        users = self._broker.scram_users
        return exchanges.ScramExchange(mechanism, users.keys, nonce, self._secret)

    def session_lifetime_ms(
        self, mechanism: str, expires_ms: int | None, now_ms: int
    ) -> int | None:
        """Return the lifetime of an authentication; None for no limit (KIP-368)."""
        longest_ms = cast("int", self._value("connections.max.reauth.ms", mechanism)) or None
        if expires_ms is None:
            return longest_ms
        left_ms = max(0, expires_ms - now_ms)
        return left_ms if longest_ms is None else min(left_ms, longest_ms)

    def principal_of(self, certificate: bytes | None) -> str:
        """Return the user of a TLS client, by its certificate.

        Raises:
            NoMatchingRule: No rule of ``ssl.principal.mapping.rules`` matches its name.
            ValueError: The certificate cannot be read.
        """
        if certificate is None:
            return ANONYMOUS
        from onceflow.broker_lite.security.distinguished_names import subject_name
        from onceflow.broker_lite.security.principal_rules import user_of

        return f"User:{user_of(self._rules, subject_name(certificate))}"

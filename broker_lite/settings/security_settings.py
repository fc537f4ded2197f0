"""Settings of listeners and of who may connect, under Kafka's property names.

They are fields of ``BrokerConfig``; ``listeners`` and ``security`` use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from onceflow.sdk.model.special_values import SASL_MECHANISMS
from onceflow.sdk.settings.declare import (
    INT32_MAX,
    Settings,
    instance,
    long,
    plain,
    secret,
    switch,
    text,
    whole,
    words,
)
from onceflow.sdk.settings.names import unknown_setting

Value = bool | int | float | str | tuple[str, ...] | None
"""The value of a property."""

STORE_TYPES = ("PEM", "PKCS12")
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

LISTENER_ONLY = ("sasl.jaas.config",)
"""Settings that exist only for a mechanism of a listener."""

_PER_LISTENER_PREFIXES = ("ssl.", "sasl.", "onceflow.sasl.")
_PER_LISTENER = frozenset(
    {"connections.max.reauth.ms", "max.connections", "max.connection.creation.rate"}
)


class SecuritySettings(Settings, dotted=True, kind="broker"):
    """See each field's declaration for property, bounds and meaning.

    Attributes:
        listener_overrides: Settings of single listeners: by name of the listener in capitals, then
            by the property after ``listener.name.NAME.``.
    """

    listeners: tuple[str, ...] = words(
        (),
        "Addresses to listen on, as NAME://HOST:PORT separated by commas; an empty host means "
        "every address. Unset, there is one: the daemon's --listen, or host and port in process.",
    )
    advertised_listeners: str = text(
        "",
        "Addresses for clients, as NAME://HOST:PORT separated by commas; a listener "
        "without an entry advertises its own.",
    )
    listener_security_protocol_map: str = text(
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Protocol of each listener name, as NAME:PROTOCOL separated by commas.",
    )
    onceflow_allow_insecure_network: bool = switch(
        False,
        "Listen on addresses that other machines can reach without authentication.",
    )
    # --- limits of connections
    max_connections: int = whole(INT32_MAX, "Most connections at a time; further ones are closed.")
    max_connection_creation_rate: int = whole(
        INT32_MAX, "Most new connections in a second; requests of further ones wait."
    )
    max_connections_per_ip: int = whole(INT32_MAX, "Most connections from one address at a time.")
    max_connections_per_ip_overrides: tuple[str, ...] = words(
        (), "The same for single addresses, as ADDRESS:COUNT separated by commas."
    )
    connections_max_idle_ms: int = long(
        600_000, "Close a connection without requests after this.", -1
    )
    connections_max_reauth_ms: int = long(
        0, "How long an authentication by SASL holds; 0 for as long as its token or for ever."
    )
    connection_failed_authentication_delay_ms: int = whole(
        100, "How long a refused authentication waits for its answer."
    )
    queued_max_request_bytes: int = long(
        -1, "Bytes of requests in memory from which no further ones are read; -1 for no limit.", -1
    )
    sasl_server_max_receive_size: int = whole(
        524_288, "Largest request before a client is authenticated."
    )
    onceflow_ssl_handshake_timeout_ms: int = whole(
        10_000, "How long a client may take to open an encrypted connection.", 1
    )

    # --- TLS
    ssl_keystore_type: str = text(
        "PEM", "Form of the keystore; PKCS12 needs onceflow[security].", choices=STORE_TYPES
    )
    ssl_keystore_location: str = text("", "File with the broker's key and certificates.")
    ssl_keystore_password: str = secret("", "Password of a PKCS12 keystore.")
    ssl_key_password: str = secret("", "Password of an encrypted key in PEM form.")
    ssl_keystore_certificate_chain: str = secret(
        "", "The broker's certificates as PEM text, in place of a file."
    )
    ssl_keystore_key: str = secret("", "The broker's key as PEM text, in place of a file.")
    ssl_truststore_type: str = text(
        "PEM", "Form of the truststore; PKCS12 needs onceflow[security].", choices=STORE_TYPES
    )
    ssl_truststore_location: str = text(
        "", "File with the certificates that sign clients' certificates."
    )
    ssl_truststore_password: str = secret("", "Password of a PKCS12 truststore.")
    ssl_truststore_certificates: str = secret(
        "", "Certificates that sign clients' certificates as PEM text, in place of a file."
    )
    ssl_client_auth: str = text(
        "none",
        "Whether clients show a certificate: none, requested or required. SASL_SSL listeners only "
        "obey it as a setting of the listener, as in Kafka.",
        choices=("none", "requested", "required"),
    )
    ssl_enabled_protocols: tuple[str, ...] = words(
        ("TLSv1.2", "TLSv1.3"), "Versions of TLS that are spoken.", choices=("TLSv1.2", "TLSv1.3")
    )
    ssl_principal_mapping_rules: str = text(
        "DEFAULT",
        "How a certificate's name becomes a user: RULE:PATTERN/REPLACEMENT/[LU], or DEFAULT.",
    )

    # --- SASL
    sasl_enabled_mechanisms: tuple[str, ...] = words(
        (), "Mechanisms that clients may authenticate by.", choices=SASL_MECHANISMS
    )
    onceflow_sasl_plain_credentials: str = secret(
        "", "Users of SASL PLAIN as NAME:PASSWORD, separated by commas."
    )
    onceflow_sasl_scram_credentials: str = secret(
        "",
        "Users that SASL SCRAM has from the first start on, as NAME:PASSWORD, separated by "
        "commas; later changes by AlterUserScramCredentials win.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str = text(
        "", "Where the keys are that sign tokens: file:, https:, or http: of this machine."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = long(
        3_600_000, "Time between two looks at these keys.", 1
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = words(
        (), "Audiences of which a token must name one; empty for any."
    )
    sasl_oauthbearer_expected_issuer: str = text(
        "", "Issuer that a token must come from; empty for any."
    )
    sasl_oauthbearer_clock_skew_seconds: int = whole(30, "How far the issuer's clock may differ.")
    sasl_oauthbearer_scope_claim_name: str = text("scope", "Claim that holds the scope.")
    sasl_oauthbearer_sub_claim_name: str = text("sub", "Claim that names the user.")
    onceflow_sasl_oauthbearer_unsecured: bool = switch(
        False, "Accept unsigned tokens, for development; a client may then claim any name."
    )

    # --- authorization
    authorizer_class_name: str = text(
        "",
        "Class that decides what clients may do; empty allows every client everything.",
        choices=("", STANDARD_AUTHORIZER),
    )
    super_users: str = text(
        "", "Principals who may do everything, as User:NAME separated by semicolons."
    )
    allow_everyone_if_no_acl_found: bool = switch(
        False, "Allow every client the use of resources without an ACL."
    )

    listener_overrides: Mapping[str, Mapping[str, str]] = instance(
        MappingProxyType({}), "Settings of single listeners.", Mapping
    )

    def listener_value(self, listener: str, name: str, mechanism: str = "") -> Value:
        """Return the value of a setting for one listener.

        Args:
            listener: Name of the listener, in capitals.
            name: Kafka property.
            mechanism: SASL mechanism, whose own value (``plain.NAME``) comes first.
        """
        overrides = self.listener_overrides.get(listener, {})
        text = overrides.get(f"{mechanism.lower()}.{name}") if mechanism else None
        if text is None:
            text = overrides.get(name)
        if text is None:
            return None if name in LISTENER_ONLY else cast("Value", getattr(self, plain(name)))
        setting = self.declared.get(plain(name))
        return text if setting is None else cast("Value", setting.read(text))

    def _check(self) -> None:
        if not self.listener_overrides:
            return
        known = {
            each.name: each
            for each in self.declared.values()
            if each.name in _PER_LISTENER or each.name.startswith(_PER_LISTENER_PREFIXES)
        }
        for listener, overrides in self.listener_overrides.items():
            for name, given in overrides.items():
                prop = name
                for mechanism in SASL_MECHANISMS:
                    prop = prop.removeprefix(f"{mechanism.lower()}.")
                if prop in known:
                    known[prop].read(given)
                elif prop not in LISTENER_ONLY:
                    whole_name = f"listener.name.{listener.lower()}.{name}"
                    raise unknown_setting(self.kind, whole_name, known)

"""Settings of listeners and of who may connect, under Kafka's property names.

They are fields of ``BrokerConfig``; what they mean is decided in ``listeners`` and ``security``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from onceflow.broker_lite.settings.setting import (
    INT_MAX,
    Declared,
    Kind,
    Setting,
    Value,
    declare,
    declare_int,
    declare_long,
    field_name,
    unknown_setting,
)

STORE_TYPES = ("PEM", "PKCS12")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

LISTENER_ONLY = ("sasl.jaas.config",)
"""Settings that exist only for a mechanism of a listener."""

_PER_LISTENER_PREFIXES = ("ssl.", "sasl.", "onceflow.sasl.")
_PER_LISTENER = frozenset(
    {"connections.max.reauth.ms", "max.connections", "max.connection.creation.rate"}
)


class SecuritySettings(Declared):
    """See each field's declaration for property, bounds and meaning.

    Attributes:
        listener_overrides: Settings of single listeners: by name of the listener in capitals, then
            by the property behind ``listener.name.NAME.``.
    """

    listeners: str = declare(
        "listeners",
        Kind.LIST,
        "",
        "Addresses to listen on, as NAME://HOST:PORT separated by commas; an empty host means "
        "every address. Unset, there is one: the daemon's --listen, or host and port in process.",
    )
    advertised_listeners: str = declare(
        "advertised.listeners",
        Kind.STRING,
        "",
        "Addresses that clients are told, as NAME://HOST:PORT separated by commas; a listener "
        "that is not named tells its own.",
    )
    listener_security_protocol_map: str = declare(
        "listener.security.protocol.map",
        Kind.STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Protocol of each listener name, as NAME:PROTOCOL separated by commas.",
    )
    onceflow_allow_insecure_network: bool = declare(
        "onceflow.allow.insecure.network",
        Kind.BOOLEAN,
        False,
        "Listen on addresses that other machines can reach without asking anybody who they are.",
    )
    # --- limits of connections
    max_connections: int = declare_int(
        "max.connections", INT_MAX, "Most connections at a time; further ones are closed."
    )
    max_connection_creation_rate: int = declare_int(
        "max.connection.creation.rate",
        INT_MAX,
        "Most new connections in a second; requests of further ones wait.",
        0,
    )
    max_connections_per_ip: int = declare_int(
        "max.connections.per.ip", INT_MAX, "Most connections from one address at a time."
    )
    max_connections_per_ip_overrides: str = declare(
        "max.connections.per.ip.overrides",
        Kind.LIST,
        "",
        "The same for single addresses, as ADDRESS:COUNT separated by commas.",
    )
    connections_max_idle_ms: int = declare_long(
        "connections.max.idle.ms", 600_000, "Close a connection without requests after this.", -1
    )
    connections_max_reauth_ms: int = declare_long(
        "connections.max.reauth.ms",
        0,
        "How long an authentication by SASL holds; 0 for as long as its token or for ever.",
    )
    connection_failed_authentication_delay_ms: int = declare_int(
        "connection.failed.authentication.delay.ms",
        100,
        "How long a refused authentication waits for its answer.",
    )
    queued_max_request_bytes: int = declare_long(
        "queued.max.request.bytes",
        -1,
        "Bytes of requests in memory from which no further ones are read; -1 for no limit.",
        -1,
    )
    sasl_server_max_receive_size: int = declare_int(
        "sasl.server.max.receive.size",
        524_288,
        "Largest request of a client that has yet to say who it is.",
    )
    onceflow_ssl_handshake_timeout_ms: int = declare_int(
        "onceflow.ssl.handshake.timeout.ms",
        10_000,
        "How long a client may take to open an encrypted connection.",
        1,
    )

    # --- TLS
    ssl_keystore_type: str = declare(
        "ssl.keystore.type",
        Kind.STRING,
        "PEM",
        "Form of the keystore; PKCS12 needs onceflow[security].",
        choices=STORE_TYPES,
    )
    ssl_keystore_location: str = declare(
        "ssl.keystore.location", Kind.STRING, "", "File with the broker's key and certificates."
    )
    ssl_keystore_password: str = declare(
        "ssl.keystore.password", Kind.PASSWORD, "", "Password of a PKCS12 keystore."
    )
    ssl_key_password: str = declare(
        "ssl.key.password", Kind.PASSWORD, "", "Password of an encrypted key in PEM form."
    )
    ssl_keystore_certificate_chain: str = declare(
        "ssl.keystore.certificate.chain",
        Kind.PASSWORD,
        "",
        "The broker's certificates as PEM text, in place of a file.",
    )
    ssl_keystore_key: str = declare(
        "ssl.keystore.key", Kind.PASSWORD, "", "The broker's key as PEM text, in place of a file."
    )
    ssl_truststore_type: str = declare(
        "ssl.truststore.type",
        Kind.STRING,
        "PEM",
        "Form of the truststore; PKCS12 needs onceflow[security].",
        choices=STORE_TYPES,
    )
    ssl_truststore_location: str = declare(
        "ssl.truststore.location",
        Kind.STRING,
        "",
        "File with the certificates that sign clients' certificates.",
    )
    ssl_truststore_password: str = declare(
        "ssl.truststore.password", Kind.PASSWORD, "", "Password of a PKCS12 truststore."
    )
    ssl_truststore_certificates: str = declare(
        "ssl.truststore.certificates",
        Kind.PASSWORD,
        "",
        "Certificates that sign clients' certificates as PEM text, in place of a file.",
    )
    ssl_client_auth: str = declare(
        "ssl.client.auth",
        Kind.STRING,
        "none",
        "Whether clients show a certificate: none, requested or required. SASL_SSL listeners only "
        "obey it as a setting of the listener, as in Kafka.",
        choices=("none", "requested", "required"),
    )
    ssl_enabled_protocols: str = declare(
        "ssl.enabled.protocols",
        Kind.LIST,
        "TLSv1.2,TLSv1.3",
        "Versions of TLS that are spoken.",
        choices=("TLSv1.2", "TLSv1.3"),
    )
    ssl_principal_mapping_rules: str = declare(
        "ssl.principal.mapping.rules",
        Kind.STRING,
        "DEFAULT",
        "How a certificate's name becomes a user: RULE:PATTERN/REPLACEMENT/[LU], or DEFAULT.",
    )

    # --- SASL
    sasl_enabled_mechanisms: str = declare(
        "sasl.enabled.mechanisms",
        Kind.LIST,
        "",
        "Mechanisms that clients may authenticate by.",
        choices=MECHANISMS,
    )
    onceflow_sasl_plain_credentials: str = declare(
        "onceflow.sasl.plain.credentials",
        Kind.PASSWORD,
        "",
        "Users of SASL PLAIN as NAME:PASSWORD, separated by commas.",
    )
    onceflow_sasl_scram_credentials: str = declare(
        "onceflow.sasl.scram.credentials",
        Kind.PASSWORD,
        "",
        "Users that SASL SCRAM has from the first start on, as NAME:PASSWORD, separated by "
        "commas; later changes by AlterUserScramCredentials win.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str = declare(
        "sasl.oauthbearer.jwks.endpoint.url",
        Kind.STRING,
        "",
        "Where the keys are that sign tokens: file:, https:, or http: of this machine.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = declare_long(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        "Time between two looks at these keys.",
        1,
    )
    sasl_oauthbearer_expected_audience: str = declare(
        "sasl.oauthbearer.expected.audience",
        Kind.LIST,
        "",
        "Audiences of which a token must name one; empty for any.",
    )
    sasl_oauthbearer_expected_issuer: str = declare(
        "sasl.oauthbearer.expected.issuer",
        Kind.STRING,
        "",
        "Issuer that a token must come from; empty for any.",
    )
    sasl_oauthbearer_clock_skew_seconds: int = declare_int(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        "How far the issuer's clock may differ.",
    )
    sasl_oauthbearer_scope_claim_name: str = declare(
        "sasl.oauthbearer.scope.claim.name", Kind.STRING, "scope", "Claim that holds the scope."
    )
    sasl_oauthbearer_sub_claim_name: str = declare(
        "sasl.oauthbearer.sub.claim.name", Kind.STRING, "sub", "Claim that names the user."
    )
    onceflow_sasl_oauthbearer_unsecured: bool = declare(
        "onceflow.sasl.oauthbearer.unsecured",
        Kind.BOOLEAN,
        False,
        "Take tokens that nobody signed, for development; anybody may then be anyone.",
    )

    # --- authorization
    authorizer_class_name: str = declare(
        "authorizer.class.name",
        Kind.STRING,
        "",
        "Who decides what clients may do; empty lets everybody do everything.",
        choices=("", STANDARD_AUTHORIZER),
    )
    super_users: str = declare(
        "super.users",
        Kind.STRING,
        "",
        "Principals who may do everything, as User:NAME separated by semicolons.",
    )
    allow_everyone_if_no_acl_found: bool = declare(
        "allow.everyone.if.no.acl.found",
        Kind.BOOLEAN,
        False,
        "Let everybody use what no ACL is about.",
    )

    listener_overrides: Mapping[str, Mapping[str, str]] = MappingProxyType({})

    @classmethod
    def fields(cls) -> dict[str, object]:
        """See :meth:`Declared.fields`."""
        return {**super().fields(), "listener_overrides": cls.listener_overrides}

    def listener_value(self, listener: str, name: str, mechanism: str = "") -> Value:
        """The value of a setting for one listener.

        Args:
            listener: Name of the listener, in capitals.
            name: Kafka property.
            mechanism: SASL mechanism; its own value (``plain.NAME``) comes first then.
        """
        overrides = self.listener_overrides.get(listener, {})
        text = overrides.get(f"{mechanism.lower()}.{name}") if mechanism else None
        if text is None:
            text = overrides.get(name)
        if text is None:
            return None if name in LISTENER_ONLY else cast("Value", getattr(self, field_name(name)))
        setting = _SETTINGS.get(name)
        return text if setting is None else setting.parse(text)

    def check_overrides(self) -> None:
        """Refuse settings of listeners that have no effect there.

        Raises:
            ConfigError: An unknown property, or a bad value.
        """
        for listener, overrides in self.listener_overrides.items():
            for name, text in overrides.items():
                prop = name
                for mechanism in MECHANISMS:
                    prop = prop.removeprefix(f"{mechanism.lower()}.")
                known = {
                    each
                    for each in _SETTINGS
                    if each in _PER_LISTENER or each.startswith(_PER_LISTENER_PREFIXES)
                }
                if prop not in (*known, *LISTENER_ONLY):
                    raise unknown_setting(f"listener.name.{listener.lower()}.{name}", known)
                if prop in known:
                    _SETTINGS[prop].parse(text)


_SETTINGS: dict[str, Setting] = {
    setting.name: setting for setting in SecuritySettings.declared.values()
}

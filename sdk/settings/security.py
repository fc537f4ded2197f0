"""How clients secure their connections and show who they are: settings, tokens, TLS contexts.

Decides which settings fit together and how key material is read. What is said on a connection is
decided in ``onceflow.sdk.core.connection.sasl``.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.special_values import SASL_MECHANISMS
from onceflow.sdk.settings.declare import FUNCTION, Settings, instance, secret, switch, text
from onceflow.sdk.settings.foreign_names import MECHANISM_REMEDIES, NOT_OFFERED

__all__ = ["OAuthToken", "SecurityConfig", "TokenFunction"]

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def check_mechanism(mechanism: object) -> None:
    """Require a SASL mechanism that clients know.

    Args:
        mechanism: What was given as ``sasl_mechanism``.

    Raises:
        ConfigError: It is missing or unknown.
    """
    if mechanism in SASL_MECHANISMS:
        return
    choices = ", ".join(SASL_MECHANISMS)
    if mechanism is None:
        raise ConfigError("sasl_mechanism", None, f"choose one of {choices}")
    remedy = MECHANISM_REMEDIES.get(str(mechanism), f"choose one of {choices}")
    raise ConfigError("sasl_mechanism", mechanism, f"unknown mechanism; {remedy}")


_EXTENSION_KEY = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class OAuthToken:
    """A bearer token for SASL OAUTHBEARER.

    Attributes:
        value: The token; never printed.
        extensions: Further values for the broker (KIP-342); keys are letters only.

    Raises:
        ConfigError: The token or an extension holds what cannot be sent.
    """

    value: str = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.value, str) or not _TOKEN.fullmatch(self.value):
            raise ConfigError(
                "sasl_oauth_token_provider", "***", "give a token of visible ASCII characters"
            )
        for key, value in self.extensions.items():
            if not _EXTENSION_KEY.fullmatch(key) or key == "auth":
                raise ConfigError("extensions", key, "name extensions with letters, not auth")
            if not _EXTENSION_VALUE.fullmatch(value):
                raise ConfigError("extensions", key, "give a value of printable ASCII characters")


TokenFunction = Callable[[], "str | OAuthToken | Awaitable[str | OAuthToken]"]
"""``provider() -> token``, plain or async; a plain one runs in a thread and may block."""


class SecurityConfig(Settings):
    """How connections are secured and authenticated."""

    remedies: ClassVar[Mapping[str, str]] = NOT_OFFERED

    security_protocol: str = text("PLAINTEXT", "What connections speak.", choices=PROTOCOLS)
    ssl_context: ssl.SSLContext | None = instance(
        None, "A ready context; wins over the files below.", ssl.SSLContext, kafka=""
    )
    ssl_cafile: str | None = text(
        None,
        "PEM file of trusted certificates; without any, those of the system.",
        kafka="ssl.truststore.location",
        aliases=("ssl.ca.location",),
    )
    ssl_truststore_certificates: str | None = secret(
        None, "The same as text.", aliases=("ssl.ca.pem",)
    )
    ssl_certfile: str | None = text(
        None,
        "PEM file of the client's certificate chain, with the key unless `ssl_keyfile` has it.",
        kafka="ssl.keystore.location",
        aliases=("ssl.certificate.location",),
    )
    ssl_keyfile: str | None = text(
        None, "PEM file of the client's key.", kafka="", aliases=("ssl.key.location",)
    )
    ssl_key_password: str | None = secret(None, "Password of an encrypted key.")
    ssl_keystore_certificate_chain: str | None = secret(
        None, "The certificate chain as PEM text.", aliases=("ssl.certificate.pem",)
    )
    ssl_keystore_key: str | None = secret(None, "The key as PEM text.", aliases=("ssl.key.pem",))
    ssl_check_hostname: bool = switch(
        True,
        "The broker's certificate must name its host.",
        kafka="ssl.endpoint.identification.algorithm",
    )
    sasl_mechanism: str | None = text(
        None, f"How to authenticate: {', '.join(SASL_MECHANISMS)}.", aliases=("sasl.mechanisms",)
    )
    sasl_username: str | None = text(
        None, "User name for PLAIN and SCRAM.", kafka="", aliases=("sasl.plain.username",)
    )
    sasl_password: str | None = secret(
        None, "Password for PLAIN and SCRAM.", kafka="", aliases=("sasl.plain.password",)
    )
    sasl_oauth_token_provider: TokenFunction | None = instance(
        None,
        "Called for a token before each authentication by OAUTHBEARER; plain (in a thread) or "
        "async, and one call at a time. It has `request_timeout_ms`, at a new connection "
        "`socket_connection_setup_timeout_ms`.",
        FUNCTION,
        kafka="",
        hidden=True,
    )

    def _check(self) -> None:
        if self.uses_sasl:
            self._check_sasl()
        else:
            self._refuse("sasl_", "credentials are only sent with SASL_PLAINTEXT or SASL_SSL")
        if self.uses_tls:
            self._check_keys()
        else:
            self._refuse("ssl_", "TLS settings are only used with SSL or SASL_SSL")

    def _refuse(self, prefix: str, remedy: str) -> None:
        """Refuse settings that this protocol does not use, since they would have no effect."""
        optional = [name for name, setting in self.declared.items() if setting.default is None]
        given = [
            name for name in optional if name.startswith(prefix) and getattr(self, name) is not None
        ]
        if given:
            raise ConfigError(
                "security_protocol", self.security_protocol, f"{remedy}; {given[0]} is given"
            )

    def _check_keys(self) -> None:
        if (self.ssl_keystore_certificate_chain is None) != (self.ssl_keystore_key is None):
            raise ConfigError(
                "ssl_keystore_key", "***", "give ssl_keystore_certificate_chain and key together"
            )
        if self.ssl_certfile is not None and self.ssl_keystore_key is not None:
            raise ConfigError(
                "ssl_certfile", self.ssl_certfile, "leave it out where ssl_keystore_key is given"
            )
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("ssl_keyfile", self.ssl_keyfile, "it needs ssl_certfile beside it")
        has_key = self.ssl_certfile is not None or self.ssl_keystore_key is not None
        if self.ssl_key_password is not None and not has_key:
            raise ConfigError("ssl_key_password", "***", "it is of no key: give ssl_certfile too")

    def _check_sasl(self) -> None:
        check_mechanism(self.sasl_mechanism)
        if self.sasl_mechanism == "OAUTHBEARER":
            if self.sasl_oauth_token_provider is None:
                raise ConfigError(
                    "sasl_oauth_token_provider", None, "give a function that returns a token"
                )
            if self.sasl_username is not None or self.sasl_password is not None:
                raise ConfigError(
                    "sasl_username", self.sasl_username, "OAUTHBEARER sends a token only"
                )
        elif not self.sasl_username or self.sasl_password is None:
            raise ConfigError(
                "sasl_username", self.sasl_username, "give sasl_username and sasl_password"
            )
        elif self.sasl_oauth_token_provider is not None:
            raise ConfigError(
                "sasl_oauth_token_provider",
                self.sasl_oauth_token_provider,
                f"{self.sasl_mechanism} sends no token; for tokens, say OAUTHBEARER",
            )
        for name in ("sasl_username", "sasl_password"):
            # Not by way of the error that encoding raises: it carries the whole text.
            if any("\ud800" <= letter <= "\udfff" for letter in getattr(self, name) or ""):
                raise ConfigError(name, "***", "give text that UTF-8 can hold")

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether connections authenticate by SASL."""
        return self.security_protocol.startswith("SASL_")

    def make_ssl_context(self) -> ssl.SSLContext | None:
        """The context for new connections, or None without TLS.

        Raises:
            ConfigError: Certificates or key cannot be read; names the setting.
        """
        if not self.uses_tls:
            return None
        if self.ssl_context is not None:
            return self.ssl_context
        try:
            context = ssl.create_default_context(
                cafile=self.ssl_cafile, cadata=self.ssl_truststore_certificates
            )
        except (OSError, ValueError) as error:
            shown = self.ssl_cafile or "***"
            raise ConfigError(
                "ssl_cafile", shown, f"give certificates in PEM form: {_reason(error)}"
            ) from error
        try:
            if self.ssl_certfile is not None:
                context.load_cert_chain(
                    self.ssl_certfile, self.ssl_keyfile, lambda: self.ssl_key_password or ""
                )
            elif self.ssl_keystore_key is not None:
                text = f"{self.ssl_keystore_key}\n{self.ssl_keystore_certificate_chain}\n"
                with as_file(text.encode()) as path:
                    context.load_cert_chain(path, None, lambda: self.ssl_key_password or "")
        except (OSError, ValueError) as error:
            raise ConfigError(
                "ssl_certfile",
                self.ssl_certfile or "***",
                "give a certificate chain and its key in PEM form, and ssl_key_password if it has "
                f"one: {_reason(error)}",
            ) from None
        context.check_hostname = self.ssl_check_hostname
        return context


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it cannot be read"
    return str(error)


@contextlib.contextmanager
def as_file(data: bytes) -> Iterator[str]:
    """Give certificates or keys a path for the TLS library, if possible in memory only."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("onceflow-key", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:  # only this user may read it
        file.write(data)
        file.flush()
        yield file.name

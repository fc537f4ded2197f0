"""Keys and certificates from Kafka's keystore settings, as contexts for TLS.

It decides which settings name keys and certificates, and what the errors say. The TLS library gets
keys through memory if the system can do that, and never through a file that stays. The settings are
those of KIP-651 (PEM) and Kafka's ``ssl.*``.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

from onceflow.broker_lite.settings.security_settings import Value
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.security import as_file

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def server_context(value: Callable[[str], Value], client_auth: str) -> ssl.SSLContext:
    """Return the TLS context of a listener.

    Args:
        value: Gives the listener's value of a Kafka property.
        client_auth: ``none``, ``requested`` or ``required``.

    Raises:
        ConfigError: Key or certificates are missing or cannot be read; says which setting.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    names = cast("tuple[str, ...]", value("ssl.enabled.protocols"))
    versions = sorted(VERSIONS[name] for name in names)
    if not versions:
        raise ConfigError("ssl.enabled.protocols", "", f"give some of {', '.join(VERSIONS)}")
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    pem, password = _key_material(value)
    setting = "ssl.keystore.location" if value("ssl.keystore.location") else "ssl.keystore.key"
    try:
        with as_file(pem) as path:
            context.load_cert_chain(path, password=lambda: password)
    except (ssl.SSLError, ValueError, OSError) as error:
        raise ConfigError(
            setting,
            value("ssl.keystore.location") or "[hidden]",
            f"give a key in PEM form, its certificate chain and ssl.key.password if it has one "
            f"({_reason(error)})",
        ) from None
    context.verify_mode = _CLIENT_AUTH[client_auth]
    if client_auth != "none":
        _trust(context, value)
    return context


def file_marks(value: Callable[[str], Value]) -> tuple[tuple[int, int, int] | None, ...]:
    """Return marks of a listener's key and certificate files, which change with the files.

    Args:
        value: Gives the listener's value of a Kafka property.
    """
    marks: list[tuple[int, int, int] | None] = []
    for setting in ("ssl.keystore.location", "ssl.truststore.location"):
        location = str(value(setting))
        if location:
            try:
                found = Path(location).stat()
            except OSError:
                marks.append(None)
            else:
                marks.append((found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(marks)


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error) or type(error).__name__


def _read(setting: str, location: str) -> bytes:
    try:
        return Path(location).read_bytes()
    except OSError as error:
        raise ConfigError(setting, location, f"give a file that can be read: {error}") from None


def _key_material(value: Callable[[str], Value]) -> tuple[bytes, str]:
    """Key and certificates as one PEM text, and the key's password."""
    location = str(value("ssl.keystore.location"))
    chain = str(value("ssl.keystore.certificate.chain"))
    key = str(value("ssl.keystore.key"))
    if location and (chain or key):
        raise ConfigError(
            "ssl.keystore.location", location, "leave it out where ssl.keystore.key is set"
        )
    password = str(value("ssl.key.password"))
    if not location:
        if not (chain and key):
            raise ConfigError(
                "ssl.keystore.location",
                "",
                "set it, or ssl.keystore.key and ssl.keystore.certificate.chain: a TLS listener "
                "needs a key and certificates",
            )
        return f"{key.strip()}\n{chain.strip()}\n".encode(), password
    data = _read("ssl.keystore.location", location)
    if value("ssl.keystore.type") == "PEM":
        return data, password
    return _from_pkcs12("ssl.keystore.location", location, data, value("ssl.keystore.password")), ""


def _trust(context: ssl.SSLContext, value: Callable[[str], Value]) -> None:
    location = str(value("ssl.truststore.location"))
    text = str(value("ssl.truststore.certificates"))
    if not (location or text):
        raise ConfigError(
            "ssl.truststore.location",
            "",
            "set it, or ssl.truststore.certificates: ssl.client.auth needs to know who signs "
            "clients' certificates",
        )
    if location:
        data = _read("ssl.truststore.location", location)
        if value("ssl.truststore.type") == "PKCS12":
            password = value("ssl.truststore.password")
            data = _from_pkcs12("ssl.truststore.location", location, data, password)
        text = data.decode("latin-1")
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            "ssl.truststore.location",
            location or "[hidden]",
            f"give certificates in PEM form ({_reason(error)})",
        ) from None


def _from_pkcs12(setting: str, location: str, data: bytes, password: Value) -> bytes:
    """Everything in a PKCS12 store as PEM text."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise ConfigError(
            setting, location, "pip install 'onceflow[security]' to read PKCS12, or give PEM"
        ) from None
    try:
        store = pkcs12.load_pkcs12(data, str(password).encode() if password else None)
    except ValueError as error:
        raise ConfigError(
            setting,
            location,
            f"give a PKCS12 file and its password ({error}); a JKS file becomes one by keytool "
            "-importkeystore -deststoretype PKCS12",
        ) from None
    parts = []
    if store.key is not None:
        parts.append(
            store.key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    found = [store.cert] if store.cert is not None else []
    parts += [
        each.certificate.public_bytes(serialization.Encoding.PEM)
        for each in [*found, *store.additional_certs]
    ]
    return b"".join(parts)

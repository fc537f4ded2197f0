"""Certificates made for one test run: an authority, a broker, clients; never kept.

Everything is written to a folder in PEM form, since foreign clients read files.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PASSWORD = "changeit"
HOUR = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Identity:
    """A certificate with its key, as files.

    Attributes:
        certificate: PEM file of the certificate chain.
        key: PEM file of the key, PKCS8 without a password.
        both: PEM file of key and chain together, Kafka's PEM keystore.
    """

    certificate: Path
    key: Path
    both: Path

    @property
    def der(self) -> bytes:
        """The certificate in DER form."""
        return ssl.PEM_cert_to_DER_cert(self.certificate.read_text())


class TlsWorld:
    """An authority and whom it signed, in one folder."""

    def __init__(self, folder: Path, authority: str = "test authority") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, authority)])
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_signs_certificates(), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.authority = folder / "authority.pem"
        self.authority.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        begins: datetime.timedelta = -HOUR,
        ends: datetime.timedelta = 24 * HOUR,
        issuer: x509.Name | None = None,
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        signer = self._key if issuer is None else key
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
            # Python 3.13 and newer refuse certificates without these (RFC 5280, 4.2.1).
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )

    def issue(
        self,
        label: str,
        subject: x509.Name | None = None,
        hosts: tuple[str, ...] = ("127.0.0.1", "localhost"),
        begins: datetime.timedelta = -HOUR,
        ends: datetime.timedelta = 24 * HOUR,
        self_signed: bool = False,
    ) -> Identity:
        """A new certificate.

        Args:
            label: Name of its files, and its common name when no subject is given.
            subject: Whom it names.
            hosts: Addresses and names that it is good for.
            begins: When it becomes valid, from now.
            ends: When it ends, from now.
            self_signed: Whether its own key signs it, instead of the authority's.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        name = subject or x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "onceflow, tests"),
                x509.NameAttribute(NameOID.COMMON_NAME, label),
            ]
        )
        names = [_general_name(host) for host in hosts]
        certificate = (
            self._builder(name, key, begins, ends, name if self_signed else None)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .sign(key if self_signed else self._key, hashes.SHA256())
        )
        chain = certificate.public_bytes(serialization.Encoding.PEM)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        made = Identity(*(self.folder / f"{label}.{kind}.pem" for kind in ("cert", "key", "both")))
        made.certificate.write_bytes(chain)
        made.key.write_bytes(private)
        made.both.write_bytes(private + chain)
        encrypted = serialization.BestAvailableEncryption(PASSWORD.encode())
        (self.folder / f"{label}.p12").write_bytes(
            pkcs12.serialize_key_and_certificates(label.encode(), key, certificate, None, encrypted)
        )
        (self.folder / f"{label}.encrypted.pem").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encrypted
            )
            + chain
        )
        return made

    def client_context(self, identity: Identity | None = None) -> ssl.SSLContext:
        """A client's context that trusts the authority."""
        context = ssl.create_default_context(cafile=str(self.authority))
        if identity is not None:
            context.load_cert_chain(identity.certificate, identity.key)
        return context


def _signs_certificates() -> x509.KeyUsage:
    """The key usage of an authority."""
    uses = {
        "digital_signature": True,
        "content_commitment": False,
        "key_encipherment": False,
        "data_encipherment": False,
        "key_agreement": False,
        "key_cert_sign": True,
        "crl_sign": True,
        "encipher_only": False,
        "decipher_only": False,
    }
    return x509.KeyUsage(**uses)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)

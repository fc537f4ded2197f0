"""SCRAM (RFC 5802, RFC 7677): the messages of both sides and the proofs in them.

It has only text and hashes. The client's flow and the broker's exchange send the messages and
handle failures. Bounds on iterations are Kafka's.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final, NamedTuple

from onceflow.sdk.errors import RemoteProtocolError

MIN_ITERATIONS: Final = 4_096
MAX_ITERATIONS: Final = 16_384
MESSAGE_BYTES_MAX: Final = 8_192
"""Longest message of SCRAM that either side reads."""
NONCE_BYTES: Final = 24
"""Random bytes of a nonce, on either side."""
GS2_HEADER: Final = "n,,"
"""No channel binding, no other identity."""

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Hash by mechanism."""

_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_NAME = re.compile(r"(?:[^=,\0]|=2C|=3D)+")


class ScramKeys(NamedTuple):
    """Keys that a broker stores for a password; never printed, because they suffice to impersonate
    the broker and to try passwords.

    Attributes:
        salt: Random bytes.
        stored_key: Hash of the client's key.
        server_key: Key of the broker's proof.
        iterations: Rounds of the hash.
    """

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramKeys(iterations={self.iterations})"


class ClientFirst(NamedTuple):
    """The client's first message.

    Attributes:
        name: User.
        nonce: The client's.
        bare: The message without its header, for the proofs.
        extensions: Further attributes.
    """

    name: str
    nonce: str
    bare: str
    extensions: dict[str, str]


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """The password, made slow to guess."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def keys_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramKeys:
    """Return the keys that a broker stores for a salted password."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramKeys(
        salt,
        hashlib.new(name, client_key).digest(),
        hmac.digest(salted, b"Server Key", name),
        iterations,
    )


def client_proof(mechanism: str, salted: bytes, auth_message: str) -> bytes:
    """Return the proof that the client knows the password."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    signature = hmac.digest(stored_key, auth_message.encode(), name)
    return _xor(client_key, signature)


def server_signature(mechanism: str, server_key: bytes, auth_message: str) -> bytes:
    """What shows that the broker knows it too."""
    return hmac.digest(server_key, auth_message.encode(), HASHES[mechanism])


def is_proof_valid(mechanism: str, keys: ScramKeys, auth_message: str, proof: bytes) -> bool:
    """Whether a proof was made with the password of these keys."""
    name = HASHES[mechanism]
    signature = hmac.digest(keys.stored_key, auth_message.encode(), name)
    if len(proof) != len(signature):
        return False
    client_key = _xor(proof, signature)
    return hmac.compare_digest(hashlib.new(name, client_key).digest(), keys.stored_key)


def client_first(name: str, nonce: str, extensions: dict[str, str] | None = None) -> str:
    """The client's first message without its header."""
    more = "".join(f",{key}={value}" for key, value in (extensions or {}).items())
    return f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}{more}"


def read_client_first(data: bytes) -> ClientFirst:
    """Read the client's first message.

    Raises:
        RemoteProtocolError: It is none.
    """
    text = _text(data)
    flag, _, rest = text.partition(",")
    identity, comma, bare = rest.partition(",")
    if flag not in ("n", "y") or not comma or (identity and not identity.startswith("a=")):
        raise RemoteProtocolError("a SCRAM message begins with n,, where no channel is bound")
    attributes = _attributes(bare, ("n", "r"))
    name = attributes.pop("n")
    nonce = attributes.pop("r")
    if not _NAME.fullmatch(name) or not _NONCE.fullmatch(nonce):
        raise RemoteProtocolError("name or nonce of a SCRAM message is malformed")
    plain = name.replace("=2C", ",").replace("=3D", "=")
    if identity not in ("", f"a={name}"):
        raise RemoteProtocolError("the authorization id of a SCRAM message differs from the name")
    return ClientFirst(plain, nonce, bare, attributes)


def read_server_first(data: bytes) -> tuple[str, bytes, int]:
    """Nonce, salt and iterations of the broker's first message.

    Raises:
        RemoteProtocolError: It is none.
    """
    attributes = _attributes(_text(data), ("r", "s", "i"))
    count = attributes["i"]
    if not (count.isascii() and count.isdigit() and len(count) < 10):
        raise RemoteProtocolError("the iterations of a SCRAM message are not a number")
    return attributes["r"], _base64(attributes["s"]), int(count)


def read_final(data: bytes, wanted: tuple[str, ...]) -> tuple[dict[str, str], str]:
    """Attributes of a final message, and the message without its proof.

    Raises:
        RemoteProtocolError: An attribute is missing.
    """
    text = _text(data)
    return _attributes(text, wanted), text.rpartition(",p=")[0]


def decode_base64(text: str) -> bytes:
    """Bytes of an attribute.

    Raises:
        RemoteProtocolError: The text is no base64.
    """
    return _base64(text)


def encode_base64(data: bytes) -> str:
    """Bytes as an attribute."""
    return base64.b64encode(data).decode()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RemoteProtocolError("a SCRAM message holds invalid base64") from None


def _text(data: bytes) -> str:
    if len(data) > MESSAGE_BYTES_MAX:
        raise RemoteProtocolError(f"a SCRAM message has more than {MESSAGE_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("a SCRAM message is not valid UTF-8") from None


def _attributes(text: str, first: tuple[str, ...]) -> dict[str, str]:
    """Attributes in their order; those that must be there come first (RFC 5802)."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or key in found or not key.isalpha():
            raise RemoteProtocolError("a SCRAM message is malformed")
        found[key] = value
    if tuple(found)[: len(first)] != first:
        raise RemoteProtocolError(f"a SCRAM message lacks one of {', '.join(first)}")
    return found

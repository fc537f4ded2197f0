"""The subject of a certificate as text, as Java writes it (RFC 2253).

Kafka's principals of TLS clients are these texts, so existing ACLs and mapping rules depend on each
character. Only the subject is read; the certificate's validity was checked before. The bytes come
from a peer, so every length is compared with the received bytes.

No library gives these texts: ``cryptography`` leaves ``=`` and ``#`` unescaped, writes unknown
attributes as text where Java writes their bytes, and refuses names that Java takes (``&`` in a
PrintableString). Java's own library is the oracle of the tests.
"""

from __future__ import annotations

KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""Attributes with a name in RFC 2253; others are written as numbers with their bytes."""

_TEXT_TAGS = frozenset({12, 19, 20, 22, 27, 30})
"""Types of strings that Java shows as text; it decodes all of them as UTF-8."""

_ESCAPED = ',=+<>#;"\\'
_VERSION_TAG, _SEQUENCE, _SET, _OBJECT_ID = 0xA0, 0x30, 0x31, 0x06


def subject_name(certificate: bytes) -> str:
    """Return the subject of a certificate.

    Args:
        certificate: In DER form.

    Raises:
        ValueError: The bytes are not a certificate.
    """
    _, body, _ = _element(certificate, 0, _SEQUENCE)
    _, fields, _ = _element(body, 0, _SEQUENCE)
    pos = 0
    if fields[:1] and fields[0] == _VERSION_TAG:
        _, _, pos = _element(fields, pos)
    for _ in range(4):  # serial number, signature algorithm, issuer, validity
        _, _, pos = _element(fields, pos)
    _, subject, _ = _element(fields, pos, _SEQUENCE)
    parts = []
    pos = 0
    while pos < len(subject):
        _, relative, pos = _element(subject, pos, _SET)
        parts.append(_relative_name(relative))
    return ",".join(reversed(parts))


def _relative_name(data: bytes) -> str:
    shown = []
    pos = 0
    while pos < len(data):
        _, pair, pos = _element(data, pos, _SEQUENCE)
        _, oid, after = _element(pair, 0, _OBJECT_ID)
        tag, value, end = _element(pair, after)
        name = _object_id(oid)
        keyword = KEYWORDS.get(name)
        if keyword is None or tag not in _TEXT_TAGS:
            shown.append(f"{keyword or name}=#{pair[after:end].hex()}")
        else:
            shown.append(f"{keyword}={_escaped(value.decode(errors='replace'))}")
    return "+".join(shown)


def _escaped(text: str) -> str:
    body = text.strip(" ")
    shown = "".join(f"\\{char}" if char in _ESCAPED else char for char in body)
    shown = shown.replace("\0", "\\00")
    lead = len(text) - len(text.lstrip(" ")) if body else len(text)
    trail = len(text) - len(text.rstrip(" ")) if body else 0
    return "\\ " * lead + shown + "\\ " * trail


def _object_id(data: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    if not numbers or len(data) > 64:
        raise ValueError("an object identifier is malformed")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _element(data: bytes, pos: int, wanted: int | None = None) -> tuple[int, bytes, int]:
    """Return tag, content and end of the element at ``pos``."""
    if pos + 2 > len(data):
        raise ValueError("the certificate ends too early")
    tag, size = data[pos], data[pos + 1]
    pos += 2
    if size & 0x80:
        count = size & 0x7F
        if not 0 < count <= 4 or pos + count > len(data):
            raise ValueError("a length is malformed")
        size = int.from_bytes(data[pos : pos + count], "big")
        pos += count
    if pos + size > len(data) or (wanted is not None and tag != wanted):
        raise ValueError("the certificate is malformed")
    return tag, data[pos : pos + size], pos + size

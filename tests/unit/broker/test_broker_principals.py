"""Goal: a certificate's name is the principal that Apache Kafka would see.

Method: certificates made for the test; their names as Java's ``X500Principal.getName()`` gives
them, copied from a run of it; mapping rules by the examples of KIP-371.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from tls_world import TlsWorld

from onceflow.broker_lite.security.distinguished_names import subject_name
from onceflow.broker_lite.security.principal_rules import NoMatchingRule, parse_rules, user_of
from onceflow.sdk.errors import ConfigError

CN, OU = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME
NAMES = [
    ([(NameOID.COUNTRY_NAME, "DE"), (NameOID.STATE_OR_PROVINCE_NAME, "Bayern"),
      (NameOID.LOCALITY_NAME, "München"), (NameOID.ORGANIZATION_NAME, "Müller, Söhne & Co"),
      (OU, "R+D"), (CN, "client")],
     "CN=client,OU=R\\+D,O=Müller\\, Söhne & Co,L=München,ST=Bayern,C=DE"),
    ([(NameOID.DOMAIN_COMPONENT, "org"), (NameOID.USER_ID, "u1"), (CN, "a=b")],
     "CN=a\\=b,UID=u1,DC=org"),
    ([(NameOID.EMAIL_ADDRESS, "a@b.example"), (CN, "with mail")],
     "CN=with mail,1.2.840.113549.1.9.1=#160b6140622e6578616d706c65"),
    ([(NameOID.SERIAL_NUMBER, "12"), (CN, 'q"uo\\te')], 'CN=q\\"uo\\\\te,2.5.4.5=#13023132'),
    ([(NameOID.GIVEN_NAME, "Ann"), (CN, "x")], "CN=x,2.5.4.42=#0c03416e6e"),
    ([(CN, " lead and trail ")], "CN=\\ lead and trail\\ "),
    ([(CN, "  two")], "CN=\\ \\ two"),
    ([(CN, "#hash a#b")], "CN=\\#hash a\\#b"),
    ([(CN, "<a>;b")], "CN=\\<a\\>\\;b"),
]  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    return TlsWorld(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize(("attributes", "shown"), NAMES, ids=lambda value: str(value)[:30])
def test_names_are_written_as_java_writes_them(
    world: TlsWorld, attributes: list[tuple[x509.ObjectIdentifier, str]], shown: str
) -> None:
    subject = x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes])
    assert subject_name(world.issue("any", subject).der) == shown


@pytest.mark.parametrize(
    ("tag", "content", "shown"),
    [
        (0x13, b"Smith & Sons_", "CN=Smith & Sons_"),  # not allowed in a PrintableString, but met
        (0x1E, "ab".encode("utf-16-be"), "CN=\\00a\\00b"),  # Java takes all bytes for UTF-8
        (0x14, "é".encode("latin-1"), "CN=\ufffd"),
        (0x0C, b"\xff\x00", "CN=\ufffd\\00"),
        (0x1B, b"general", "CN=general"),
        (0x1A, b"visible", "CN=#1a0776697369626c65"),
        (0x1C, "a".encode("utf-32-be"), "CN=#1c0400000061"),
        (0x12, b"12", "CN=#12023132"),
    ],
)
def test_types_of_text_are_read_as_java_reads_them(
    world: TlsWorld, tag: int, content: bytes, shown: str
) -> None:
    """As seen in 6,000 random names; cryptography makes or reads some of these only by force."""
    placeholder = "P" * len(content)
    subject = x509.Name([x509.NameAttribute(CN, placeholder)])
    der = world.issue("any", subject).der
    text = bytes([0x0C, len(content)]) + placeholder.encode()
    assert subject_name(der.replace(text, bytes([tag, len(content)]) + content)) == shown


def test_several_attributes_in_one_part_stay_together(world: TlsWorld) -> None:
    part = x509.RelativeDistinguishedName(
        [x509.NameAttribute(CN, "multi"), x509.NameAttribute(OU, "value")]
    )
    assert subject_name(world.issue("any", x509.Name([part])).der) == "CN=multi+OU=value"


def test_bytes_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    """Every way to cut a certificate short, and every byte turned over."""
    good = TlsWorld(tmp_path).issue("any").der
    for size in range(min(200, len(good))):
        with pytest.raises(ValueError, match=r".+"):
            subject_name(good[:size])
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 0xFF
        try:
            subject_name(bytes(damaged))
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("", "CN=a", "CN=a"),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=app,OU=ServiceUsers,O=x", "app"),
        (r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
         "CN=Adm,OU=Ops,O=o,L=l,ST=s,C=c", "adm@ops"),
        (r"RULE:^CN=(\w+)$/$1/U, DEFAULT", "CN=abc", "ABC"),
        (r"RULE:^CN=(\w+)$/$1/U, DEFAULT", "O=abc", "O=abc"),
        (r"RULE:^CN=a\/b$/x\/y/", "CN=a/b", "x/y"),
    ],
)  # fmt: skip
def test_rules_map_names(rules: str, name: str, user: str) -> None:
    """KIP-371."""
    assert user_of(parse_rules(rules), name) == user


def test_a_name_without_a_rule_is_nobody() -> None:
    with pytest.raises(NoMatchingRule):
        user_of(parse_rules(r"RULE:^CN=(\w+)$/$1/"), "O=x")


@pytest.mark.parametrize("rules", ["RULE:", "RULE:a/b", "CN=x", "RULE:(/x/", "RULE:a/b/X"])
def test_malformed_rules_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError):
        parse_rules(rules)

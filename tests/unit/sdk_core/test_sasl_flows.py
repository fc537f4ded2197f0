"""Goal: a client tells an impostor from its broker, and shows what the standards say.

Method: flows driven by hand; the exchanges of RFC 7677 (SHA-256) with their nonce and salt.
"""

from __future__ import annotations

import pytest

from onceflow.sdk.core.connection.sasl import (
    authenticate_plain,
    authenticate_scram,
    authenticate_token,
)
from onceflow.sdk.core.flow import Flow, Send
from onceflow.sdk.errors import (
    KafkaError,
    RemoteProtocolError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from onceflow.sdk.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = r"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"r={NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNATURE = "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def talk(flow: Flow[int], *answers: str | SaslAuthenticateResponse) -> tuple[list[bytes], int]:
    """Drive a flow; gives the tokens that it sent, and its result."""
    tokens = []
    step = next(flow)
    assert isinstance(step, Send)
    assert isinstance(step.request, SaslHandshakeRequest)
    reply: SaslHandshakeResponse | SaslAuthenticateResponse = SaslHandshakeResponse()
    queue = list(answers)
    try:
        while True:
            step = flow.send(reply)
            assert isinstance(step, Send)
            assert isinstance(step.request, SaslAuthenticateRequest)
            tokens.append(bytes(step.request.auth_bytes))
            answer = queue.pop(0)
            reply = (
                SaslAuthenticateResponse(auth_bytes=answer.encode(), session_lifetime_ms=7)
                if isinstance(answer, str)
                else answer
            )
    except StopIteration as stop:
        assert not queue
        return tokens, stop.value


def scram() -> Flow[int]:
    return authenticate_scram("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_scram_as_in_rfc_7677() -> None:
    tokens, lifetime_ms = talk(scram(), FIRST, f"v={SIGNATURE}")
    assert tokens == [
        f"n,,n=user,r={NONCE}".encode(),
        f"c=biws,r={NONCE}{SERVER_NONCE},p={PROOF}".encode(),
    ]
    assert lifetime_ms == 7


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (FIRST, "v=" + SIGNATURE.replace("6", "7", 1)),
        (FIRST, "v="),
        (FIRST, "e=invalid-proof"),
        (FIRST, ""),
        (FIRST.replace(NONCE, "another"), "unused"),
        (f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "unused"),
        (FIRST.replace("4096", "4095"), "unused"),
        (FIRST.replace("4096", "100001"), "unused"),
        (FIRST.replace("4096", "-5"), "unused"),
        (FIRST.replace("4096", "9" * 400), "unused"),
        (FIRST.replace("s=W22", "s=!!"), "unused"),
        ("nonsense", "unused"),
    ],
)
def test_a_broker_that_does_not_know_the_password_is_an_impostor(first: str, last: str) -> None:
    with pytest.raises(RemoteProtocolError):
        talk(scram(), first, last)


def test_names_with_commas_and_equal_signs_are_escaped() -> None:
    flow = authenticate_scram("SCRAM-SHA-512", "a,b=c", "x", NONCE)
    with pytest.raises(RemoteProtocolError):
        talk(flow, "broken")
    flow = authenticate_scram("SCRAM-SHA-512", "a,b=c", "x", NONCE)
    next(flow)
    step = flow.send(SaslHandshakeResponse())
    assert isinstance(step, Send)
    assert isinstance(step.request, SaslAuthenticateRequest)
    assert bytes(step.request.auth_bytes) == f"n,,n=a=2Cb=3Dc,r={NONCE}".encode()


def test_plain_and_tokens() -> None:
    assert talk(authenticate_plain("me", "pw"), "") == ([b"\0me\0pw"], 7)
    flow = authenticate_token("abc", {"trace": "1"})
    assert talk(flow, "") == ([b"n,,\x01auth=Bearer abc\x01trace=1\x01\x01"], 7)


def test_a_refused_token_ends_the_exchange_and_says_why() -> None:
    flow = authenticate_token("abc", {})
    refused = SaslAuthenticateResponse(error_code=58, error_message="no")
    with pytest.raises(SaslAuthenticationFailedError, match="no"):
        talk(flow, '{"status":"invalid_token"}', refused)
    with pytest.raises(SaslAuthenticationFailedError, match="invalid_token"):
        talk(authenticate_token("abc", {}), '{"status":"invalid_token"}', "")


def test_refusals_are_errors() -> None:
    with pytest.raises(SaslAuthenticationFailedError, match="bad"):
        talk(
            authenticate_plain("me", "pw"),
            SaslAuthenticateResponse(error_code=58, error_message="bad"),
        )
    flow = authenticate_plain("me", "pw")
    next(flow)
    with pytest.raises(UnsupportedSaslMechanismError, match="SCRAM-SHA-256"):
        flow.send(SaslHandshakeResponse(error_code=33, mechanisms=["SCRAM-SHA-256"]))
    assert issubclass(UnsupportedSaslMechanismError, KafkaError)

"""A broker with a listener for each way to come in, and the tokens that its OAUTHBEARER takes."""

from __future__ import annotations

import json
import time

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from tls_world import TlsWorld

MAP = (
    "PLAINTEXT:PLAINTEXT,SSL:SSL,MTLS:SSL,WANTED:SSL,SASL_SSL:SASL_SSL,"
    "SASL_PLAINTEXT:SASL_PLAINTEXT"
)
LISTENERS = ",".join(f"{entry.partition(':')[0]}://127.0.0.1:0" for entry in MAP.split(","))


def jwks(key: rsa.RSAPrivateKey, key_id: str = "one") -> str:
    entry = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return json.dumps({"keys": [{**entry, "kid": key_id, "use": "sig", "alg": "RS256"}]})


def token(key: rsa.RSAPrivateKey, key_id: str = "one", **claims: object) -> str:
    now = time.time()
    body = {"sub": "carol", "iat": now, "exp": now + 60, "aud": "kafka", "iss": "us", **claims}
    body = {name: value for name, value in body.items() if value is not None}
    return jwt.encode(body, key, algorithm="RS256", headers={"kid": key_id})


def settings_of(world: TlsWorld) -> dict[str, object]:
    return {
        "listener.security.protocol.map": MAP,
        "ssl.keystore.location": str(world.folder / "broker.both.pem"),
        "ssl.truststore.location": str(world.authority),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.wanted.ssl.client.auth": "requested",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/U,DEFAULT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "onceflow.sasl.plain.credentials": "alice:secret,bob:hidden",
        "onceflow.sasl.scram.credentials": "dave:salted",
        "sasl.oauthbearer.jwks.endpoint.url": (world.folder / "jwks.json").as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka,other",
        "sasl.oauthbearer.expected.issuer": "us",
        "connection.failed.authentication.delay.ms": 0,
    }

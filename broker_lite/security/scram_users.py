"""Users of SCRAM, with the keys of their passwords, stored across restarts.

It decides which changes AlterUserScramCredentials may make (KIP-554). A change takes effect after
it is on the disk.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from onceflow.broker_lite.cluster_metadata import SCRAM_SECTION
from onceflow.broker_lite.security.plain import parse_credentials
from onceflow.sdk.model.special_values import ScramMechanism
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.scram import (
    HASHES,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramKeys,
    keys_of,
    salted_password,
)

if TYPE_CHECKING:
    from onceflow.broker_lite.cluster_metadata import ClusterMetadata, Json

CREDENTIALS_SETTING = "onceflow.sasl.scram.credentials"
SALT_BYTES = 20
USERS_MAX = 100_000
"""Most users with SCRAM credentials; further ones are refused."""


class Refusal(NamedTuple):
    """Error code and message of a refused change."""

    code: ErrorCode
    message: str


class Deletion(NamedTuple):
    """A request to remove a user's credential."""

    name: str
    mechanism: int


class Upsertion(NamedTuple):
    """A request to set a user's credential."""

    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"Upsertion(name={self.name!r}, mechanism={self.mechanism})"


class ScramUsers:
    """Credentials by user and mechanism.

    Args:
        metadata: Stores them.
        first_users: Value of ``onceflow.sasl.scram.credentials``.

    Raises:
        ConfigError: The setting is malformed.
    """

    __slots__ = ("_first_users", "_metadata", "_users")

    def __init__(self, metadata: ClusterMetadata, first_users: str) -> None:
        self._metadata = metadata
        self._users = _read(metadata.section(SCRAM_SECTION))
        self._first_users = parse_credentials(first_users, CREDENTIALS_SETTING)
        users = dict(self._users)
        for name, password in self._first_users.items():
            if name not in users:
                users[name] = {}
                for mechanism in HASHES:
                    salt = secrets.token_bytes(SALT_BYTES)
                    salted = salted_password(mechanism, password, salt, MIN_ITERATIONS)
                    users[name][mechanism] = keys_of(mechanism, salted, salt, MIN_ITERATIONS)
        if users != self._users:
            self._save(users)

    def keys(self, mechanism: str, name: str) -> ScramKeys | None:
        """Return the keys of a user's password; None for an unknown user."""
        return self._users.get(name, {}).get(mechanism)

    def describe(self) -> dict[str, dict[ScramMechanism, int]]:
        """Return the iterations by mechanism, by user."""
        return {
            name: {
                mechanism: keys[mechanism.label].iterations
                for mechanism in ScramMechanism
                if mechanism.label in keys
            }
            for name, keys in sorted(self._users.items())
            if keys
        }

    def alter(
        self, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
    ) -> dict[str, Refusal | None]:
        """Make the changes of each user, or none of them.

        Returns:
            By user in the order of the request: None, or why the user is unchanged.

        Raises:
            OSError: Nothing was changed, as it could not be written.
        """
        users = {name: dict(keys) for name, keys in self._users.items()}
        results: dict[str, Refusal | None] = {}
        changes: dict[str, list[Deletion | Upsertion]] = {}
        every: list[Deletion | Upsertion] = [*deletions, *upsertions]
        for change in every:
            changes.setdefault(change.name, []).append(change)
        for name, wanted in changes.items():
            results[name] = self._refusal(name, wanted)
            if results[name] is not None:
                continue
            keys = users.setdefault(name, {})
            for change in wanted:
                mechanism = ScramMechanism(change.mechanism).label
                if isinstance(change, Deletion):
                    del keys[mechanism]
                else:
                    keys[mechanism] = keys_of(
                        mechanism, change.salted_password, change.salt, change.iterations
                    )
            # An empty entry stays for a user of the settings, or a restart would add it again.
            if not keys and name not in self._first_users:
                del users[name]
        if users != self._users:
            self._save(users)
        return results

    def _refusal(self, name: str, wanted: Sequence[Deletion | Upsertion]) -> Refusal | None:
        if not name:
            return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        if name not in self._users and len(self._users) >= USERS_MAX:
            return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"There are {USERS_MAX} users")
        refusal = self._refusal_of(name, wanted[0])
        if refusal is None and len(wanted) > 1:
            # A user may occur only once, even with two mechanisms, as in Kafka.
            return Refusal(
                ErrorCode.DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            )
        if refusal is None and isinstance(wanted[0], Upsertion) and not wanted[0].salted_password:
            # The last check: Kafka notices it only when it writes, and fails there.
            return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salted password is empty")
        return refusal

    def _refusal_of(self, name: str, change: Deletion | Upsertion) -> Refusal | None:
        if change.mechanism not in list(ScramMechanism):
            return Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if isinstance(change, Deletion):
            if self.keys(ScramMechanism(change.mechanism).label, name) is None:
                return Refusal(
                    ErrorCode.RESOURCE_NOT_FOUND,
                    "Attempt to delete a user credential that does not exist",
                )
        elif change.iterations < MIN_ITERATIONS:
            return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
        elif change.iterations > MAX_ITERATIONS:
            return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
        return None

    def _save(self, users: dict[str, dict[str, ScramKeys]]) -> None:
        self._metadata.save(SCRAM_SECTION, {name: _render(keys) for name, keys in users.items()})
        self._users = users


def _render(keys: Mapping[str, ScramKeys]) -> Json:
    return {
        mechanism: {
            "salt": base64.b64encode(each.salt).decode(),
            "stored_key": base64.b64encode(each.stored_key).decode(),
            "server_key": base64.b64encode(each.server_key).decode(),
            "iterations": each.iterations,
        }
        for mechanism, each in keys.items()
    }


def _read(section: Mapping[str, Json]) -> dict[str, dict[str, ScramKeys]]:
    users: dict[str, dict[str, ScramKeys]] = {}
    for name, kept in section.items():
        assert isinstance(kept, dict)
        users[name] = {}
        for mechanism, fields in kept.items():
            assert isinstance(fields, dict)
            parts = [
                base64.b64decode(str(fields[key])) for key in ("salt", "stored_key", "server_key")
            ]
            users[name][mechanism] = ScramKeys(
                parts[0], parts[1], parts[2], int(str(fields["iterations"]))
            )
    return users

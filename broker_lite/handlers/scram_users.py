"""DescribeUserScramCredentials and AlterUserScramCredentials: users of SASL SCRAM (KIP-554)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.broker_lite.security.scram_users import Deletion, Upsertion
from onceflow.sdk.protocol.api.security_admin import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.security")

Described = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
Altered = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


@handles(DescribeUserScramCredentialsRequest)
def describe_user_scram_credentials(
    state: Services,
    context: RequestContext,
    request: DescribeUserScramCredentialsRequest,
    now_ms: int,
) -> DescribeUserScramCredentialsResponse:
    """Describe mechanisms and iterations of users; never their passwords."""
    users = state.scram_users.describe()
    wanted = [user.name for user in request.users or ()]
    results = []
    for name in dict.fromkeys(wanted or users):
        if wanted.count(name) > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            message = f"Cannot describe SCRAM credentials for the same user twice: {name}"
        elif name not in users:
            code = ErrorCode.RESOURCE_NOT_FOUND
            message = f"User {name} has no SCRAM credentials."
        else:
            infos = [
                DescribeUserScramCredentialsResponse.CredentialInfo(
                    mechanism=mechanism, iterations=iterations
                )
                for mechanism, iterations in users[name].items()
            ]
            results.append(Described(user=name, error_message="", credential_infos=infos))
            continue
        results.append(Described(user=name, error_code=code, error_message=message))
    return DescribeUserScramCredentialsResponse(results=results)


@handles(AlterUserScramCredentialsRequest)
def alter_user_scram_credentials(
    state: Services,
    context: RequestContext,
    request: AlterUserScramCredentialsRequest,
    now_ms: int,
) -> AlterUserScramCredentialsResponse:
    """Set and remove credentials; a user's changes are made together or not at all."""
    deletions = [Deletion(each.name, each.mechanism) for each in request.deletions]
    upsertions = [
        Upsertion(
            each.name,
            each.mechanism,
            each.iterations,
            bytes(each.salt),
            bytes(each.salted_password),
        )
        for each in request.upsertions
    ]
    try:
        outcome = state.scram_users.alter(deletions, upsertions)
    except OSError as error:
        logger.error("users of SCRAM cannot be saved: %s", error)
        changes: list[Deletion | Upsertion] = [*deletions, *upsertions]
        names = dict.fromkeys(change.name for change in changes)
        return AlterUserScramCredentialsResponse(
            results=[
                Altered(
                    user=name,
                    error_code=ErrorCode.KAFKA_STORAGE_ERROR,
                    error_message="The change could not be written; nothing was changed.",
                )
                for name in names
            ]
        )
    return AlterUserScramCredentialsResponse(
        results=[
            Altered(user=name)
            if refusal is None
            else Altered(user=name, error_code=refusal.code, error_message=refusal.message)
            for name, refusal in outcome.items()
        ]
    )

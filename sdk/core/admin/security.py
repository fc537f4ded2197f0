"""What an admin client asks about ACLs, SCRAM users and quotas: one exchange each.

As in ``admin_topics``, flows about several things answer with an outcome for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from onceflow.sdk.core.admin.topics import Outcomes, fill_missing, outcome
from onceflow.sdk.core.flow import Flow, ask
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.model.admin_cluster import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    AnyName,
    ClientQuota,
    ScramDeletion,
    ScramUpsertion,
)
from onceflow.sdk.model.special_values import QuotaMatch, ScramMechanism
from onceflow.sdk.protocol.api.admin_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from onceflow.sdk.protocol.api.security_admin import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for
from onceflow.sdk.protocol.scram import salted_password

SCRAM_MECHANISMS: Final[Mapping[str, int]] = {each.label: each for each in ScramMechanism}
"""Mechanisms by name, as numbered on the wire."""

QuotaEntity = tuple[tuple[str, str | None], ...]


# --- ACLs


def describe_acls(wanted: AclFilter, target: int | None) -> Flow[list[AclBinding]]:
    """The rules that a filter matches."""
    request = DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    reply = yield from ask(request, DescribeAclsResponse, target)
    if reply.error_code != ErrorCode.NONE:
        raise error_for(reply.error_code, reply.error_message or "DescribeAcls")
    return [
        _binding(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            (acl.principal, acl.host, acl.operation, acl.permission_type),
        )
        for resource in reply.resources
        for acl in resource.acls
    ]


def _binding(kind: int, name: str, pattern: int, rule: tuple[str, str, int, int]) -> AclBinding:
    principal, host, operation, permission = rule
    try:
        return AclBinding(
            AclResourceType(kind),
            name,
            principal,
            AclOperation(operation),
            AclPermission(permission),
            host,
            AclPatternType(pattern),
        )
    except ValueError as error:
        raise RemoteProtocolError(f"an ACL that this client does not know: {error}") from None


def create_acls(
    bindings: Sequence[AclBinding], target: int | None
) -> Flow[Outcomes[AclBinding, None]]:
    """Add rules."""
    request = CreateAclsRequest(
        creations=[
            CreateAclsRequest.AclCreation(
                resource_type=binding.resource_type,
                resource_name=binding.resource_name,
                resource_pattern_type=binding.pattern_type,
                principal=binding.principal,
                host=binding.host,
                operation=binding.operation,
                permission_type=binding.permission,
            )
            for binding in bindings
        ]
    )
    reply = yield from ask(request, CreateAclsResponse, target)
    found: Outcomes[AclBinding, None] = {
        binding: outcome(result.error_code, result.error_message, binding, None)
        for binding, result in zip(bindings, reply.results, strict=False)
    }
    return fill_missing(bindings, found)


def delete_acls(
    filters: Sequence[AclFilter], target: int | None
) -> Flow[Outcomes[AclFilter, list[AclBinding]]]:
    """Remove the rules that filters match; each result is what was removed."""
    request = DeleteAclsRequest(
        filters=[
            DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=wanted.resource_type,
                resource_name_filter=wanted.resource_name,
                pattern_type_filter=wanted.pattern_type,
                principal_filter=wanted.principal,
                host_filter=wanted.host,
                operation=wanted.operation,
                permission_type=wanted.permission,
            )
            for wanted in filters
        ]
    )
    reply = yield from ask(request, DeleteAclsResponse, target)
    found: Outcomes[AclFilter, list[AclBinding]] = {}
    for wanted, result in zip(filters, reply.filter_results, strict=False):
        code, message = result.error_code, result.error_message
        for acl in result.matching_acls:
            if acl.error_code and not code:
                code, message = acl.error_code, acl.error_message
        removed = [
            _binding(
                acl.resource_type,
                acl.resource_name,
                acl.pattern_type,
                (acl.principal, acl.host, acl.operation, acl.permission_type),
            )
            for acl in result.matching_acls
            if not acl.error_code
        ]
        found[wanted] = outcome(code, message, wanted, removed)
    return fill_missing(filters, found)


# --- SCRAM users


def describe_scram_users(
    users: Sequence[str] | None, target: int | None
) -> Flow[Outcomes[str, dict[str, int]]]:
    """Iterations by mechanism of users; None asks for all."""
    request = DescribeUserScramCredentialsRequest(
        users=None
        if users is None
        else [DescribeUserScramCredentialsRequest.UserName(name=name) for name in users]
    )
    reply = yield from ask(request, DescribeUserScramCredentialsResponse, target)
    if reply.error_code != ErrorCode.NONE:
        raise error_for(reply.error_code, reply.error_message or "DescribeUserScramCredentials")
    names = {number: name for name, number in SCRAM_MECHANISMS.items()}
    found: Outcomes[str, dict[str, int]] = {}
    for result in reply.results:
        infos = {
            names.get(info.mechanism, str(info.mechanism)): info.iterations
            for info in result.credential_infos
        }
        found[result.user] = outcome(
            result.error_code, result.error_message, f"user {result.user!r}", infos
        )
    return fill_missing(users or (), found)


def alter_scram_users(
    upsertions: Sequence[ScramUpsertion], deletions: Sequence[ScramDeletion], target: int | None
) -> Flow[Outcomes[str, None]]:
    """Set and remove passwords; every upsertion has its salt."""
    request = AlterUserScramCredentialsRequest(
        deletions=[
            AlterUserScramCredentialsRequest.ScramCredentialDeletion(
                name=deletion.user, mechanism=SCRAM_MECHANISMS[deletion.mechanism]
            )
            for deletion in deletions
        ],
        upsertions=[
            AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                name=wish.user,
                mechanism=SCRAM_MECHANISMS[wish.mechanism],
                iterations=wish.iterations,
                salt=wish.salt or b"",
                salted_password=salted_password(
                    wish.mechanism, wish.password, wish.salt or b"", wish.iterations
                ),
            )
            for wish in upsertions
        ],
    )
    reply = yield from ask(request, AlterUserScramCredentialsResponse, target)
    found: Outcomes[str, None] = {
        result.user: outcome(result.error_code, result.error_message, f"user {result.user!r}", None)
        for result in reply.results
    }
    users = [wish.user for wish in upsertions] + [deletion.user for deletion in deletions]
    return fill_missing(dict.fromkeys(users), found)


# --- quotas


def describe_quotas(
    components: Mapping[str, str | AnyName | None], strict: bool, target: int | None
) -> Flow[list[ClientQuota]]:
    """Quotas of the entities that match every component."""
    parts = []
    for kind, name in components.items():
        match = QuotaMatch.EXACT
        if name is None:
            match = QuotaMatch.DEFAULT
        elif isinstance(name, AnyName):
            match = QuotaMatch.SPECIFIED
        parts.append(
            DescribeClientQuotasRequest.ComponentData(
                entity_type=kind, match_type=match, match=name if isinstance(name, str) else None
            )
        )
    request = DescribeClientQuotasRequest(components=parts, strict=strict)
    reply = yield from ask(request, DescribeClientQuotasResponse, target)
    if reply.error_code != ErrorCode.NONE:
        raise error_for(reply.error_code, reply.error_message or "DescribeClientQuotas")
    return [
        ClientQuota(
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in reply.entries or ()
    ]


def alter_quotas(
    changes: Mapping[QuotaEntity, Mapping[str, float | None]],
    validate_only: bool,
    target: int | None,
) -> Flow[Outcomes[QuotaEntity, None]]:
    """Set quotas of entities; None removes one."""
    message = AlterClientQuotasRequest
    request = message(
        entries=[
            message.EntryData(
                entity=[
                    message.EntityData(entity_type=kind, entity_name=name) for kind, name in entity
                ],
                ops=[
                    message.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in quotas.items()
                ],
            )
            for entity, quotas in changes.items()
        ],
        validate_only=validate_only,
    )
    reply = yield from ask(request, AlterClientQuotasResponse, target)
    found: Outcomes[QuotaEntity, None] = {}
    for entry in reply.entries:
        entity = quota_entity((part.entity_type, part.entity_name) for part in entry.entity)
        found[entity] = outcome(entry.error_code, entry.error_message, dict(entity), None)
    return fill_missing(changes, found)


def quota_entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Parts of an entity in one order."""
    return tuple(sorted(parts, key=lambda part: part[0]))

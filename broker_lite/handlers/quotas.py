"""DescribeClientQuotas and AlterClientQuotas (KIP-546).

Decides how requests about quotas are read and answered; ``quotas`` decides what may be set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.broker_lite.quotas.client_quotas import (
    QuotaError,
    QuotaFilter,
    check_quota,
    make_entity,
)
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.sdk.protocol.api.admin_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services

Parts = tuple[tuple[str, str | None], ...]


@handles(DescribeClientQuotasRequest)
def describe_client_quotas(
    state: Services, context: RequestContext, request: DescribeClientQuotasRequest, now_ms: int
) -> DescribeClientQuotasResponse:
    """List the quotas of every entity that matches."""
    filters = [
        QuotaFilter(component.entity_type, component.match_type, component.match)
        for component in request.components
    ]
    try:
        found = state.quotas.quotas.matching(filters, request.strict)
    except QuotaError as error:
        return DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.message, entries=None
        )
    message = DescribeClientQuotasResponse
    return message(
        entries=[
            message.EntryData(
                entity=[
                    message.EntityData(entity_type=kind, entity_name=name) for kind, name in entity
                ],
                values=[message.ValueData(key=key, value=value) for key, value in values.items()],
            )
            for entity, values in found
        ]
    )


@handles(AlterClientQuotasRequest)
def alter_client_quotas(
    state: Services, context: RequestContext, request: AlterClientQuotasRequest, now_ms: int
) -> AlterClientQuotasResponse:
    """Change quotas, each entity by itself."""
    by_parts: dict[Parts, list[AlterClientQuotasRequest.EntryData]] = {}
    for entry in request.entries:
        parts = {part.entity_type: part.entity_name for part in entry.entity}
        by_parts.setdefault(tuple(sorted(parts.items())), []).append(entry)
    message = AlterClientQuotasResponse
    outcomes = []
    for parts_, entries in by_parts.items():
        code, text = ErrorCode.NONE, None
        try:
            if len(entries) > 1:
                raise QuotaError("The entity is in the request more than once.")
            _alter(state, parts_, entries[0], request.validate_only)
        except QuotaError as error:
            code, text = error.code, error.message
        except OSError as error:
            code, text = ErrorCode.KAFKA_STORAGE_ERROR, f"Quotas cannot be stored: {error}."
        outcomes.append(
            message.EntryData(
                error_code=code,
                error_message=text,
                entity=[
                    message.EntityData(entity_type=kind, entity_name=name) for kind, name in parts_
                ],
            )
        )
    return message(entries=outcomes)


def _alter(
    state: Services,
    parts: Parts,
    entry: AlterClientQuotasRequest.EntryData,
    validate_only: bool,
) -> None:
    entity = make_entity(parts)
    changes: dict[str, float | None] = {}
    for operation in entry.ops:
        if operation.key in changes:
            raise QuotaError(f"Quota {operation.key} is in the request more than once.")
        changes[operation.key] = (
            None if operation.remove else check_quota(entity, operation.key, operation.value)
        )
    if not validate_only:
        state.quotas.quotas.alter(entity, changes)

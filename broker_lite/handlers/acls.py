"""DescribeAcls, CreateAcls and DeleteAcls: the rules of who may do what (KIP-140, KIP-290)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.broker_lite.security.acl_model import Acl, AclFilter
from onceflow.broker_lite.security.authorizer import AclRefused
from onceflow.sdk.protocol.api.security_admin import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.security")

NO_AUTHORIZER = "No Authorizer is configured."
NOT_WRITTEN = "The change could not be written; nothing was changed."

CreationResult = CreateAclsResponse.AclCreationResult
FilterResult = DeleteAclsResponse.DeleteAclsFilterResult
Resource = DescribeAclsResponse.DescribeAclsResource

_UNKNOWN_NUMBER = "The filter has an unknown type of resource, pattern, operation or permission."


def _filter(wish: DescribeAclsRequest | DeleteAclsRequest.DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        wish.resource_type_filter,
        wish.resource_name_filter,
        wish.pattern_type_filter,
        wish.principal_filter,
        wish.host_filter,
        wish.operation,
        wish.permission_type,
    )


@handles(DescribeAclsRequest)
def describe_acls(
    state: Services, context: RequestContext, request: DescribeAclsRequest, now_ms: int
) -> DescribeAclsResponse:
    """List the ACLs that match a filter, by resource."""
    if state.authorizer is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
        )
    wanted = _filter(request)
    if not wanted.is_known:
        return DescribeAclsResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=_UNKNOWN_NUMBER,
        )
    resources: dict[tuple[int, str, int], Resource] = {}
    for acl in filter(wanted.matches, state.authorizer.acls()):
        resource = resources.setdefault(
            (acl.resource_type, acl.name, acl.pattern_type),
            Resource(
                resource_type=acl.resource_type,
                resource_name=acl.name,
                pattern_type=acl.pattern_type,
                acls=[],
            ),
        )
        resource.acls.append(
            DescribeAclsResponse.AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
        )
    return DescribeAclsResponse(error_message="", resources=list(resources.values()))


@handles(CreateAclsRequest)
def create_acls(
    state: Services, context: RequestContext, request: CreateAclsRequest, now_ms: int
) -> CreateAclsResponse:
    """Add the valid ACLs."""
    if state.authorizer is None:
        refused = CreationResult(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
        )
        return CreateAclsResponse(results=[refused for _ in request.creations])
    results: list[CreationResult] = []
    good: list[Acl] = []
    for wish in request.creations:
        acl = Acl(
            wish.resource_type,
            wish.resource_name,
            wish.resource_pattern_type,
            wish.principal,
            wish.host,
            wish.operation,
            wish.permission_type,
        )
        try:
            state.authorizer.check(acl, len(good))
        except AclRefused as error:
            results.append(
                CreationResult(error_code=ErrorCode.INVALID_REQUEST, error_message=str(error))
            )
            continue
        good.append(acl)
        results.append(CreationResult(error_message=""))
    try:
        state.authorizer.add(good)
    except OSError as error:
        logger.error("ACLs cannot be saved: %s", error)
        for result in results:
            if not result.error_code:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                result.error_message = NOT_WRITTEN
    return CreateAclsResponse(results=results)


@handles(DeleteAclsRequest)
def delete_acls(
    state: Services, context: RequestContext, request: DeleteAclsRequest, now_ms: int
) -> DeleteAclsResponse:
    """Remove the ACLs that match the filters."""
    filters = [_filter(wish) for wish in request.filters]
    code, message = ErrorCode.NONE, ""
    found: list[list[Acl]] = []
    if state.authorizer is None:
        code, message = ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER
    else:
        try:
            found = state.authorizer.remove(each for each in filters if each.is_known)
        except OSError as error:
            logger.error("ACLs cannot be saved: %s", error)
            code, message = ErrorCode.KAFKA_STORAGE_ERROR, NOT_WRITTEN
    if code:
        refused = FilterResult(error_code=code, error_message=message)
        return DeleteAclsResponse(filter_results=[refused for _ in filters])
    matched = iter(found)
    results = []
    for each in filters:
        if each.is_known:
            results.append(FilterResult(matching_acls=[_shown(acl) for acl in next(matched)]))
        else:
            results.append(
                FilterResult(
                    error_code=ErrorCode.INVALID_REQUEST,
                    error_message=_UNKNOWN_NUMBER,
                )
            )
    return DeleteAclsResponse(filter_results=results)


def _shown(acl: Acl) -> DeleteAclsResponse.DeleteAclsMatchingAcl:
    return DeleteAclsResponse.DeleteAclsMatchingAcl(
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )

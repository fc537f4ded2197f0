"""Messages that administer SCRAM users and ACLs.

DescribeAcls (key 29), CreateAcls (key 30), DeleteAcls (key 31), versions 1-3, flexible from 2:
    1 pattern types (KIP-290)
    3 users by resource type 7 (KIP-373)
DescribeUserScramCredentials (key 50), AlterUserScramCredentials (key 51), version 0, flexible:
    (KIP-554)
"""

from __future__ import annotations

from typing import TypeAlias

from onceflow.sdk.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    bytes_,
    int8,
    int16,
    int32,
    string,
)


class DescribeAclsRequest(Request, api_key=29, versions="1-3", flexible="2+"):
    """Ask for the ACLs that match a filter; None and ANY match everything."""

    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable="0+")
    pattern_type_filter: int = int8("1+", default=3)
    principal_filter: str | None = string(nullable="0+")
    host_filter: str | None = string(nullable="0+")
    operation: int = int8()
    permission_type: int = int8()


class DescribeAclsResponse(Response, api_key=29, versions="1-3", flexible="2+"):
    """ACLs by resource."""

    class DescribeAclsResource(Struct):
        class AclDescription(Struct):
            principal: str = string()
            host: str = string()
            operation: int = int8()
            permission_type: int = int8()

        resource_type: int = int8()
        resource_name: str = string()
        pattern_type: int = int8("1+", default=3)
        acls: list[AclDescription] = array(AclDescription)

    AclDescription: TypeAlias = DescribeAclsResource.AclDescription

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    resources: list[DescribeAclsResource] = array(DescribeAclsResource, default=[])


class CreateAclsRequest(Request, api_key=30, versions="1-3", flexible="2+"):
    """Add ACLs."""

    class AclCreation(Struct):
        resource_type: int = int8()
        resource_name: str = string()
        resource_pattern_type: int = int8("1+", default=3)
        principal: str = string()
        host: str = string()
        operation: int = int8()
        permission_type: int = int8()

    creations: list[AclCreation] = array(AclCreation)


class CreateAclsResponse(Response, api_key=30, versions="1-3", flexible="2+"):
    """The outcome for each ACL, in the request's order."""

    class AclCreationResult(Struct):
        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+", default=None)

    throttle_time_ms: int = int32(default=0)
    results: list[AclCreationResult] = array(AclCreationResult, default=[])


class DeleteAclsRequest(Request, api_key=31, versions="1-3", flexible="2+"):
    """Remove the ACLs that match filters."""

    class DeleteAclsFilter(Struct):
        """A filter; None and ANY match everything."""

        resource_type_filter: int = int8()
        resource_name_filter: str | None = string(nullable="0+")
        pattern_type_filter: int = int8("1+", default=3)
        principal_filter: str | None = string(nullable="0+")
        host_filter: str | None = string(nullable="0+")
        operation: int = int8()
        permission_type: int = int8()

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


class DeleteAclsResponse(Response, api_key=31, versions="1-3", flexible="2+"):
    """What each filter removed, in the request's order."""

    class DeleteAclsFilterResult(Struct):
        class DeleteAclsMatchingAcl(Struct):
            """One ACL that the filter matched."""

            error_code: int = int16(default=0)
            error_message: str | None = string(nullable="0+", default=None)
            resource_type: int = int8()
            resource_name: str = string()
            pattern_type: int = int8("1+", default=3)
            principal: str = string()
            host: str = string()
            operation: int = int8()
            permission_type: int = int8()

        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+", default=None)
        matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl, default=[])

    DeleteAclsMatchingAcl: TypeAlias = DeleteAclsFilterResult.DeleteAclsMatchingAcl

    throttle_time_ms: int = int32(default=0)
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult, default=[])


class DescribeUserScramCredentialsRequest(Request, api_key=50, versions="0-0", flexible="0+"):
    """Ask for SCRAM users; None or an empty list asks for all."""

    class UserName(Struct):
        name: str = string()

    users: list[UserName] | None = array(UserName, nullable="0+")


class DescribeUserScramCredentialsResponse(Response, api_key=50, versions="0-0", flexible="0+"):
    """Mechanisms and iterations of users."""

    class DescribeUserScramCredentialsResult(Struct):
        class CredentialInfo(Struct):
            """One mechanism of the user."""

            mechanism: int = int8()
            iterations: int = int32()

        user: str = string()
        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+", default=None)
        credential_infos: list[CredentialInfo] = array(CredentialInfo, default=[])

    CredentialInfo: TypeAlias = DescribeUserScramCredentialsResult.CredentialInfo

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    results: list[DescribeUserScramCredentialsResult] = array(
        DescribeUserScramCredentialsResult, default=[]
    )


class AlterUserScramCredentialsRequest(Request, api_key=51, versions="0-0", flexible="0+"):
    """Remove and set the passwords of SCRAM users."""

    class ScramCredentialDeletion(Struct):
        """A credential to remove."""

        name: str = string()
        mechanism: int = int8()

    class ScramCredentialUpsertion(Struct):
        """A credential to set; it carries the salted password, not the password."""

        name: str = string()
        mechanism: int = int8()
        iterations: int = int32()
        salt: bytes = bytes_()
        salted_password: bytes = bytes_()

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


class AlterUserScramCredentialsResponse(Response, api_key=51, versions="0-0", flexible="0+"):
    """Outcome for each user."""

    class AlterUserScramCredentialsResult(Struct):
        user: str = string()
        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+", default=None)

    throttle_time_ms: int = int32(default=0)
    results: list[AlterUserScramCredentialsResult] = array(
        AlterUserScramCredentialsResult, default=[]
    )

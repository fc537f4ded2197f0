"""Messages of topic administration and of single settings.

Layouts only: the broker decides which settings exist and which values they take.

CreateTopics (key 19), versions 2-7, flexible from 5:
    4 -1 for the broker's defaults (KIP-464)
    5 the topic's settings in the answer (KIP-525)
    6 THROTTLING_QUOTA_EXCEEDED (KIP-599)
    7 topic id in the answer
DeleteTopics (key 20), versions 1-6, flexible from 4:
    3 TOPIC_DELETION_DISABLED
    5 error messages
    6 topic ids (KIP-516)
DescribeConfigs (key 32), versions 1-4, flexible from 4:
    1 sources and synonyms (KIP-226)
    3 types and documentation (KIP-569)
CreatePartitions (key 37), versions 0-3, flexible from 2:
    3 THROTTLING_QUOTA_EXCEEDED (KIP-599)
IncrementalAlterConfigs (key 44), versions 0-1, flexible from 1:
    (KIP-339)
"""

from __future__ import annotations

import enum
from typing import TypeAlias
from uuid import UUID

from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
    uuid,
)


class ConfigOperation(enum.IntEnum):
    """The change that IncrementalAlterConfigs makes to a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class CreateTopicsRequest(Request, api_key=19, versions="2-7", flexible="5+"):
    """Create topics, or only validate the request."""

    class CreatableTopic(Struct):
        """One topic; -1 takes the broker's default."""

        class CreatableReplicaAssignment(Struct):
            """The brokers that hold the replicas of one partition."""

            partition_index: int = int32()
            broker_ids: list[int] = array(int32)

        class CreatableTopicConfig(Struct):
            name: str = string()
            value: str | None = string(nullable="0+")

        name: str = string()
        num_partitions: int = int32(default=-1)
        replication_factor: int = int16(default=-1)
        assignments: list[CreatableReplicaAssignment] = array(
            CreatableReplicaAssignment, default=[]
        )
        configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, default=[])

    CreatableReplicaAssignment: TypeAlias = CreatableTopic.CreatableReplicaAssignment
    CreatableTopicConfig: TypeAlias = CreatableTopic.CreatableTopicConfig

    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean(default=False)


class CreateTopicsResponse(Response, api_key=19, versions="2-7", flexible="5+"):
    """The outcome for each topic."""

    class CreatableTopicResult(Struct):
        """The outcome for one topic; Java's client fails if `configs` is null."""

        class CreatableTopicConfigs(Struct):
            """A setting of the created topic."""

            name: str = string()
            value: str | None = string(nullable="0+")
            read_only: bool = boolean()
            config_source: int = int8(default=-1)
            is_sensitive: bool = boolean()

        name: str = string()
        topic_id: UUID = uuid("7+", default=ZERO_UUID, ignorable=True)
        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+", default=None)
        topic_config_error_code: int = int16(default=0, tag=0, tagged="5+", ignorable=True)
        num_partitions: int = int32("5+", default=-1, ignorable=True)
        replication_factor: int = int16("5+", default=-1, ignorable=True)
        configs: list[CreatableTopicConfigs] | None = array(
            CreatableTopicConfigs, "5+", nullable="5+", default=[], ignorable=True
        )

    CreatableTopicConfigs: TypeAlias = CreatableTopicResult.CreatableTopicConfigs

    throttle_time_ms: int = int32(default=0)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


class DeleteTopicsRequest(Request, api_key=20, versions="1-6", flexible="4+"):
    """Delete topics by name, or from version 6 on also by id."""

    class DeleteTopicState(Struct):
        name: str | None = string(nullable="0+", default=None)
        topic_id: UUID = uuid()

    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+", default=[])
    topic_names: list[str] = array(string, "1-5", default=[], ignorable=True)
    timeout_ms: int = int32()


class DeleteTopicsResponse(Response, api_key=20, versions="1-6", flexible="4+"):
    """The outcome for each topic."""

    class DeletableTopicResult(Struct):
        name: str | None = string(nullable="6+", default=None)
        topic_id: UUID = uuid("6+", default=ZERO_UUID, ignorable=True)
        error_code: int = int16(default=0)
        error_message: str | None = string("5+", nullable="5+", default=None, ignorable=True)

    throttle_time_ms: int = int32(default=0)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


class CreatePartitionsRequest(Request, api_key=37, versions="0-3", flexible="2+"):
    """Add partitions to topics."""

    class CreatePartitionsTopic(Struct):
        """One topic and its new number of partitions."""

        class CreatePartitionsAssignment(Struct):
            """The brokers that hold the replicas of one new partition."""

            broker_ids: list[int] = array(int32)

        name: str = string()
        count: int = int32()
        assignments: list[CreatePartitionsAssignment] | None = array(
            CreatePartitionsAssignment, nullable="0+", default=None
        )

    CreatePartitionsAssignment: TypeAlias = CreatePartitionsTopic.CreatePartitionsAssignment

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean(default=False)


class CreatePartitionsResponse(Response, api_key=37, versions="0-3", flexible="2+"):
    """The outcome for each topic."""

    class CreatePartitionsTopicResult(Struct):
        name: str = string()
        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+", default=None)

    throttle_time_ms: int = int32(default=0)
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


class DescribeConfigsRequest(Request, api_key=32, versions="1-4", flexible="4+"):
    """Ask for settings of topics, brokers or groups."""

    class DescribeConfigsResource(Struct):
        """One resource; null keys ask for all settings."""

        resource_type: int = int8()
        resource_name: str = string()
        configuration_keys: list[str] | None = array(string, nullable="0+", default=None)

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(default=False)
    include_documentation: bool = boolean("3+", default=False)


class DescribeConfigsResponse(Response, api_key=32, versions="1-4", flexible="4+"):
    """The requested settings."""

    class DescribeConfigsResult(Struct):
        class DescribeConfigsResourceResult(Struct):
            class DescribeConfigsSynonym(Struct):
                """Another source of a value for this setting."""

                name: str = string()
                value: str | None = string(nullable="0+")
                source: int = int8()

            name: str = string()
            value: str | None = string(nullable="0+")
            read_only: bool = boolean()
            config_source: int = int8(default=-1)
            is_sensitive: bool = boolean()
            synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym)
            config_type: int = int8("3+", default=0, ignorable=True)
            documentation: str | None = string("3+", nullable="3+", default=None, ignorable=True)

        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+", default=None)
        resource_type: int = int8()
        resource_name: str = string()
        configs: list[DescribeConfigsResourceResult] = array(
            DescribeConfigsResourceResult, default=[]
        )

    DescribeConfigsResourceResult: TypeAlias = DescribeConfigsResult.DescribeConfigsResourceResult
    DescribeConfigsSynonym: TypeAlias = (
        DescribeConfigsResult.DescribeConfigsResourceResult.DescribeConfigsSynonym
    )

    throttle_time_ms: int = int32(default=0)
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)


class IncrementalAlterConfigsRequest(Request, api_key=44, versions="0-1", flexible="1+"):
    """Change single settings and keep all others."""

    class AlterConfigsResource(Struct):
        class AlterableConfig(Struct):
            name: str = string()
            config_operation: int = int8()
            value: str | None = string(nullable="0+")

        resource_type: int = int8()
        resource_name: str = string()
        configs: list[AlterableConfig] = array(AlterableConfig)

    AlterableConfig: TypeAlias = AlterConfigsResource.AlterableConfig

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean(default=False)


class IncrementalAlterConfigsResponse(Response, api_key=44, versions="0-1", flexible="1+"):
    """The outcome for each resource."""

    class AlterConfigsResourceResponse(Struct):
        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+", default=None)
        resource_type: int = int8()
        resource_name: str = string()

    throttle_time_ms: int = int32(default=0)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)

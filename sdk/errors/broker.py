"""One exception per error code of Kafka.

The class statements are the table: code, name, kind of reaction and the sentence that a user
reads (the docstring). `onceflow.sdk.protocol.error_codes` numbers them for the wire;
`onceflow.sdk.errors` is where users import them from. Nothing here decides when an error is
raised or retried.
"""

from __future__ import annotations

from onceflow.sdk.errors.kinds import (
    AbortableError,
    BrokerError,
    FatalError,
    RecordError,
    RetriableError,
)


class UnknownServerError(BrokerError, code=-1, name="UNKNOWN_SERVER_ERROR"):
    """The broker failed in a way without a specific code; its log says more."""


class OffsetOutOfRangeError(BrokerError, code=1):
    """The offset is outside the partition's log; seek, or set auto_offset_reset."""


class CorruptMessageError(RetriableError, BrokerError, code=2):
    """A batch failed its checksum or is malformed; send it again."""


class UnknownTopicOrPartitionError(RetriableError, BrokerError, code=3):
    """The broker does not host this topic or partition; create it or refresh the metadata."""


class InvalidFetchSizeError(BrokerError, code=4):
    """The fetch asked for a negative or zero size; check the fetch settings."""


class LeaderNotAvailableError(RetriableError, BrokerError, code=5):
    """The partition has no leader at the moment; retry after an election."""


class NotLeaderOrFollowerError(RetriableError, BrokerError, code=6):
    """This broker no longer leads the partition; refresh the metadata and ask the new leader."""


class RequestTimedOutError(RetriableError, BrokerError, code=7):
    """The request was not answered in time; retry, or raise request_timeout_ms."""


class BrokerNotAvailableError(BrokerError, code=8):
    """The broker is not available; check that it runs."""


class ReplicaNotAvailableError(RetriableError, BrokerError, code=9):
    """The replica is not available at the moment; retry."""


class MessageTooLargeError(RecordError, BrokerError, code=10):
    """The batch exceeds the topic's max.message.bytes; make records smaller or raise that limit."""


class StaleControllerEpochError(BrokerError, code=11):
    """The controller moved to another node; ask the new one."""


class OffsetMetadataTooLargeError(BrokerError, code=12):
    """The metadata text of a commit is too long; shorten it or raise offset.metadata.max.bytes."""


class NetworkError(RetriableError, BrokerError, code=13, name="NETWORK_EXCEPTION"):
    """The broker dropped the connection before it answered; retry."""


class CoordinatorLoadInProgressError(RetriableError, BrokerError, code=14):
    """The coordinator is still loading its state; retry."""


class CoordinatorNotAvailableError(RetriableError, BrokerError, code=15):
    """The coordinator is not available at the moment; retry."""


class NotCoordinatorError(RetriableError, BrokerError, code=16):
    """This broker is not the coordinator any more; look the coordinator up again."""


class InvalidTopicError(BrokerError, code=17, name="INVALID_TOPIC_EXCEPTION"):
    """The topic name is not allowed; use 1 to 249 characters of [a-zA-Z0-9._-]."""


class RecordListTooLargeError(RecordError, BrokerError, code=18):
    """The batch exceeds the topic's segment size; make batches smaller."""


class NotEnoughReplicasError(RetriableError, BrokerError, code=19):
    """Fewer replicas are in sync than min.insync.replicas asks for; nothing was written."""


class NotEnoughReplicasAfterAppendError(RetriableError, BrokerError, code=20):
    """The batch was written, but to fewer in-sync replicas than min.insync.replicas asks for."""


class InvalidRequiredAcksError(BrokerError, code=21):
    """acks must be -1 (all), 0 or 1."""


class IllegalGenerationError(AbortableError, BrokerError, code=22):
    """The group has moved to another generation; abort, rejoin, read from the committed offsets."""


class InconsistentGroupProtocolError(BrokerError, code=23):
    """The group uses other assignors or another protocol type; configure all members alike."""


class InvalidGroupIdError(BrokerError, code=24):
    """The group id is empty or not allowed here; set group_id."""


class UnknownMemberIdError(AbortableError, BrokerError, code=25):
    """The group has removed this member; abort, rejoin and read from the committed offsets."""


class InvalidSessionTimeoutError(BrokerError, code=26):
    """session_timeout_ms is outside the broker's group.min/max.session.timeout.ms."""


class RebalanceInProgressError(RetriableError, BrokerError, code=27):
    """The group is rebalancing; poll until it is done, then repeat the call."""


class InvalidCommitOffsetSizeError(BrokerError, code=28):
    """The offsets of this commit do not fit into one batch; commit fewer partitions at once."""


class TopicAuthorizationFailedError(AbortableError, BrokerError, code=29):
    """This user may not use the topic; grant the right or use another user."""


class GroupAuthorizationFailedError(AbortableError, BrokerError, code=30):
    """This user may not use the group; grant the right or use another user."""


class ClusterAuthorizationFailedError(FatalError, BrokerError, code=31):
    """This user may not act on the cluster; grant the right or use another user."""


class InvalidTimestampError(RecordError, BrokerError, code=32):
    """The record's timestamp is outside what the topic accepts (message.timestamp.*)."""


class UnsupportedSaslMechanismError(FatalError, BrokerError, code=33):
    """The broker does not offer this SASL mechanism; use one that it lists."""


class IllegalSaslStateError(FatalError, BrokerError, code=34):
    """A request came out of turn in the SASL handshake; check security_protocol on both sides."""


class UnsupportedVersionError(FatalError, BrokerError, code=35):
    """One side lacks the request version that is needed; upgrade it or avoid the feature."""


class TopicAlreadyExistsError(BrokerError, code=36):
    """A topic of this name exists already."""


class InvalidPartitionsError(BrokerError, code=37):
    """The number of partitions is not allowed; it must be at least 1 and can only grow."""


class InvalidReplicationFactorError(BrokerError, code=38):
    """The replication factor is below 1 or above the number of brokers."""


class InvalidReplicaAssignmentError(BrokerError, code=39):
    """The replica assignment is not valid; check partitions and broker ids."""


class InvalidConfigError(BrokerError, code=40):
    """A configuration entry has an unknown name or a value that is not allowed."""


class NotControllerError(RetriableError, BrokerError, code=41):
    """This node is not the controller any more; ask the new one."""


class InvalidRequestError(BrokerError, code=42):
    """The broker refused the request's content; its message or log says which part."""


class UnsupportedForMessageFormatError(FatalError, BrokerError, code=43):
    """The log's record format does not support this request."""


class PolicyViolationError(BrokerError, code=44):
    """A policy of the cluster forbids these parameters."""


class OutOfOrderSequenceNumberError(AbortableError, BrokerError, code=45):
    """An earlier batch is missing at the broker; abort and send again, records may be lost."""


class DuplicateSequenceNumberError(BrokerError, code=46):
    """The broker holds this batch already; its offset is not known any more."""


class InvalidProducerEpochError(AbortableError, BrokerError, code=47):
    """The epoch is old: the transaction timed out or another producer took over; abort it."""


class InvalidTxnStateError(FatalError, BrokerError, code=48):
    """The transaction is not in a state that allows this request; close this producer."""


class InvalidProducerIdMappingError(FatalError, BrokerError, code=49):
    """The producer id no longer belongs to the transactional id; close this producer."""


class InvalidTransactionTimeoutError(FatalError, BrokerError, code=50):
    """transaction_timeout_ms exceeds the broker's transaction.max.timeout.ms; lower it."""


class ConcurrentTransactionsError(RetriableError, BrokerError, code=51):
    """The previous transaction of this producer is still being completed; retry."""


class TransactionCoordinatorFencedError(BrokerError, code=52):
    """A newer transaction coordinator has replaced the one that sent this."""


class TransactionalIdAuthorizationFailedError(FatalError, BrokerError, code=53):
    """This user may not use the transactional id; grant the right or use another user."""


class SecurityDisabledError(BrokerError, code=54):
    """The cluster runs without an authorizer, so it has no access rules to manage."""


class OperationNotAttemptedError(BrokerError, code=55):
    """The broker did not try this part, because another part of the request failed."""


class KafkaStorageError(RetriableError, BrokerError, code=56, name="KAFKA_STORAGE_ERROR"):
    """The broker could not use its disk; retry at the new leader and check the disk."""


class LogDirNotFoundError(BrokerError, code=57):
    """The log directory is not one of the broker's."""


class SaslAuthenticationFailedError(FatalError, BrokerError, code=58):
    """The credentials were refused; check user name, password and mechanism."""


class UnknownProducerIdError(AbortableError, BrokerError, code=59):
    """The broker holds no state for this producer id; abort and start over."""


class ReassignmentInProgressError(BrokerError, code=60):
    """The partition is being moved; wait until that is complete."""


class DelegationTokenAuthDisabledError(BrokerError, code=61):
    """The cluster does not use delegation tokens."""


class DelegationTokenNotFoundError(BrokerError, code=62):
    """The broker does not know this delegation token."""


class DelegationTokenOwnerMismatchError(BrokerError, code=63):
    """Only the owner or a renewer may change this delegation token."""


class DelegationTokenRequestNotAllowedError(BrokerError, code=64):
    """Delegation tokens cannot be asked for over this kind of connection."""


class DelegationTokenAuthorizationFailedError(BrokerError, code=65):
    """This user may not manage the delegation token."""


class DelegationTokenExpiredError(BrokerError, code=66):
    """The delegation token has expired; get a new one."""


class InvalidPrincipalTypeError(BrokerError, code=67):
    """The broker does not support this type of principal."""


class NonEmptyGroupError(BrokerError, code=68):
    """The group still has members; stop them first."""


class GroupIdNotFoundError(BrokerError, code=69):
    """There is no group with this id."""


class FetchSessionIdNotFoundError(RetriableError, BrokerError, code=70):
    """The broker has dropped the fetch session; start a new one."""


class InvalidFetchSessionEpochError(RetriableError, BrokerError, code=71):
    """The fetch session is out of step; start a new one."""


class ListenerNotFoundError(RetriableError, BrokerError, code=72):
    """The leader has no listener of the name that the request came in on."""


class TopicDeletionDisabledError(BrokerError, code=73):
    """Topics cannot be deleted on this cluster (delete.topic.enable)."""


class FencedLeaderEpochError(RetriableError, BrokerError, code=74):
    """The leader epoch in the request is older than the broker's; refresh the metadata."""


class UnknownLeaderEpochError(RetriableError, BrokerError, code=75):
    """The leader epoch in the request is newer than the broker's; retry."""


class UnsupportedCompressionTypeError(BrokerError, code=76):
    """The compression codec is not supported for this request version or by the topic."""


class StaleBrokerEpochError(BrokerError, code=77):
    """The broker has registered again since; its epoch is old."""


class OffsetNotAvailableError(RetriableError, BrokerError, code=78):
    """The new leader has not caught up to the offset yet; retry."""


class MemberIdRequiredError(BrokerError, code=79):
    """The coordinator gave out a member id; join again with it."""


class PreferredLeaderNotAvailableError(RetriableError, BrokerError, code=80):
    """The preferred leader is not available."""


class GroupMaxSizeReachedError(BrokerError, code=81):
    """The group has as many members as group.max.size allows."""


class FencedInstanceIdError(FatalError, BrokerError, code=82):
    """Another consumer uses the same group_instance_id; give each its own and close this one."""


class EligibleLeadersNotAvailableError(RetriableError, BrokerError, code=83):
    """No eligible leader of the partition is available."""


class ElectionNotNeededError(RetriableError, BrokerError, code=84):
    """The partition has the wanted leader already."""


class NoReassignmentInProgressError(BrokerError, code=85):
    """The partition is not being moved."""


class GroupSubscribedToTopicError(BrokerError, code=86):
    """The group still reads this topic, so its offsets cannot be deleted."""


class InvalidRecordError(RecordError, BrokerError, code=87):
    """The broker refused a record, for instance one without a key for a compacted topic."""


class UnstableOffsetCommitError(RetriableError, BrokerError, code=88):
    """An open transaction will decide these committed offsets; retry."""


class ThrottlingQuotaExceededError(RetriableError, BrokerError, code=89):
    """A quota is used up; retry after the time that the broker named."""


class ProducerFencedError(FatalError, BrokerError, code=90):
    """A newer producer uses the same transactional id; close this one and never retry with it."""


class ResourceNotFoundError(BrokerError, code=91):
    """The resource of the request does not exist."""


class DuplicateResourceError(BrokerError, code=92):
    """The request names a resource twice, or it exists already."""


class UnacceptableCredentialError(BrokerError, code=93):
    """The credential does not meet the broker's requirements."""


class InconsistentVoterSetError(BrokerError, code=94):
    """The node knows another set of quorum voters than the one in the request."""


class InvalidUpdateVersionError(BrokerError, code=95):
    """The feature cannot be set to this version."""


class FeatureUpdateFailedError(BrokerError, code=96):
    """The features could not be updated; the broker's log says why."""


class PrincipalDeserializationFailureError(BrokerError, code=97):
    """The forwarded principal could not be read; the brokers' settings differ."""


class SnapshotNotFoundError(BrokerError, code=98):
    """The snapshot does not exist."""


class PositionOutOfRangeError(BrokerError, code=99):
    """The position is outside the snapshot."""


class UnknownTopicIdError(RetriableError, BrokerError, code=100):
    """The broker does not know this topic id; refresh the metadata."""


class DuplicateBrokerRegistrationError(BrokerError, code=101):
    """Another broker is registered under this id."""


class BrokerIdNotRegisteredError(BrokerError, code=102):
    """The broker id is not registered with the controller."""


class InconsistentTopicIdError(RetriableError, BrokerError, code=103):
    """The topic was deleted and created again under the same name; refresh the metadata."""


class InconsistentClusterIdError(BrokerError, code=104):
    """The request names another cluster's id."""


class TransactionalIdNotFoundError(BrokerError, code=105):
    """The coordinator does not know this transactional id."""


class FetchSessionTopicIdError(
    RetriableError, BrokerError, code=106, name="FETCH_SESSION_TOPIC_ID_ERROR"
):
    """The fetch session mixes names and ids of topics; start a new one."""


class IneligibleReplicaError(BrokerError, code=107):
    """The replica may not join the in-sync set now."""


class NewLeaderElectedError(BrokerError, code=108):
    """The change to the partition made the controller elect another leader."""


class OffsetMovedToTieredStorageError(BrokerError, code=109):
    """The offset is in tiered storage; read it from there."""


class FencedMemberEpochError(AbortableError, BrokerError, code=110):
    """The coordinator is ahead of this member; abort, give up all partitions and rejoin."""


class UnreleasedInstanceIdError(BrokerError, code=111):
    """The group_instance_id is still used by another member, which must leave first."""


class UnsupportedAssignorError(BrokerError, code=112):
    """The group's coordinator offers no assignor of this name."""


class StaleMemberEpochError(AbortableError, BrokerError, code=113):
    """The member epoch is old; abort, take the newer one from the heartbeat and try again."""


class MismatchedEndpointTypeError(BrokerError, code=114):
    """The request went to the wrong kind of endpoint (broker or controller)."""


class UnsupportedEndpointTypeError(BrokerError, code=115):
    """The broker does not know this kind of endpoint."""


class UnknownControllerIdError(BrokerError, code=116):
    """The controller id is not known."""


class UnknownSubscriptionIdError(BrokerError, code=117):
    """The telemetry subscription is old; ask for the current one."""


class TelemetryTooLargeError(BrokerError, code=118):
    """The telemetry exceeds telemetry.max.bytes."""


class InvalidRegistrationError(BrokerError, code=119):
    """The controller refused the broker's registration."""


class TransactionAbortableError(AbortableError, BrokerError, code=120):
    """The broker cannot continue this transaction; abort it and begin a new one."""


class InvalidRecordStateError(BrokerError, code=121):
    """A share group no longer holds the record in the state of the acknowledgement."""


class ShareSessionNotFoundError(RetriableError, BrokerError, code=122):
    """The broker has dropped the share session; start a new one."""


class InvalidShareSessionEpochError(RetriableError, BrokerError, code=123):
    """The share session is out of step; start a new one."""


class FencedStateEpochError(BrokerError, code=124):
    """The share coordinator has a newer state epoch."""


class InvalidVoterKeyError(BrokerError, code=125):
    """The voter key does not match the receiving node."""


class DuplicateVoterError(BrokerError, code=126):
    """The voter belongs to the quorum already."""


class VoterNotFoundError(BrokerError, code=127):
    """The voter does not belong to the quorum."""


class InvalidRegularExpressionError(BrokerError, code=128):
    """The subscription's regular expression is not valid (RE2 syntax)."""


class RebootstrapRequiredError(BrokerError, code=129):
    """The client's view of the cluster is too old; start again from bootstrap_servers."""


class StreamsInvalidTopologyError(BrokerError, code=130):
    """The streams topology is not valid."""


class StreamsInvalidTopologyEpochError(BrokerError, code=131):
    """The streams topology has an epoch that is not valid."""


class StreamsTopologyFencedError(BrokerError, code=132):
    """The group uses a newer streams topology."""


class ShareSessionLimitReachedError(RetriableError, BrokerError, code=133):
    """The broker holds as many share sessions as it may; retry later."""


class GroupDeletionFailedError(BrokerError, code=134):
    """The group could not be deleted."""


class StreamsTopologyDescriptionUpdateFailedError(BrokerError, code=135):
    """The description of the streams topology could not be stored."""


class ControllerIdNotRegisteredError(BrokerError, code=136):
    """The controller id is not registered."""

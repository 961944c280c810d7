"""Which requests the proxy offers, in which versions, and where their responses carry addresses of brokers.

Of a request or a version that is not here nobody has looked whether its response has an address: it is hidden from clients. Tests compare
this table with the message definitions of kio and of the newest Kafka.

Source: Kafka 4.4, clients/src/main/resources/common/message; KIP-951 and KIP-932 for endpoints of new leaders.
"""

from collections.abc import Mapping
from typing import NamedTuple

from headwater.gateway.protocol import Api


class OfferedApi(NamedTuple):
    """
    name            as Kafka has it
    version_max     a newer one is hidden; the lowest is the broker's
    flexible_from   versions from there on have compact lengths and tagged fields (KIP-482); None: none has
    addresses_from  versions from there on have addresses in their responses; None: none has
    """

    name: str
    version_max: int
    flexible_from: int | None = 0
    addresses_from: int | None = None


HIDDEN = frozenset((80, 82))  # AddRaftVoter and UpdateRaftVoter: addresses of controllers, in a request that goes between them

OFFERED: Mapping[int, OfferedApi] = {
    Api.PRODUCE: OfferedApi("Produce", 13, 9, addresses_from=10),
    Api.FETCH: OfferedApi("Fetch", 18, 12, addresses_from=16),
    2: OfferedApi("ListOffsets", 11, 6),
    Api.METADATA: OfferedApi("Metadata", 13, 9, addresses_from=0),
    8: OfferedApi("OffsetCommit", 10, 8),
    9: OfferedApi("OffsetFetch", 10, 6),
    Api.FIND_COORDINATOR: OfferedApi("FindCoordinator", 6, 3, addresses_from=0),
    11: OfferedApi("JoinGroup", 9, 6),
    12: OfferedApi("Heartbeat", 4, 4),
    13: OfferedApi("LeaveGroup", 5, 4),
    14: OfferedApi("SyncGroup", 5, 4),
    15: OfferedApi("DescribeGroups", 6, 5),
    16: OfferedApi("ListGroups", 5, 3),
    Api.SASL_HANDSHAKE: OfferedApi("SaslHandshake", 1, None),
    Api.API_VERSIONS: OfferedApi("ApiVersions", 5, 3),
    19: OfferedApi("CreateTopics", 7, 5),
    20: OfferedApi("DeleteTopics", 6, 4),
    21: OfferedApi("DeleteRecords", 2, 2),
    22: OfferedApi("InitProducerId", 6, 2),
    23: OfferedApi("OffsetForLeaderEpoch", 4, 4),
    24: OfferedApi("AddPartitionsToTxn", 5, 3),
    25: OfferedApi("AddOffsetsToTxn", 4, 3),
    26: OfferedApi("EndTxn", 5, 3),
    27: OfferedApi("WriteTxnMarkers", 2, 1),
    28: OfferedApi("TxnOffsetCommit", 6, 3),
    29: OfferedApi("DescribeAcls", 3, 2),
    30: OfferedApi("CreateAcls", 3, 2),
    31: OfferedApi("DeleteAcls", 3, 2),
    32: OfferedApi("DescribeConfigs", 4, 4),
    33: OfferedApi("AlterConfigs", 2, 2),
    34: OfferedApi("AlterReplicaLogDirs", 2, 2),
    35: OfferedApi("DescribeLogDirs", 5, 2),
    Api.SASL_AUTHENTICATE: OfferedApi("SaslAuthenticate", 2, 2),
    37: OfferedApi("CreatePartitions", 3, 2),
    38: OfferedApi("CreateDelegationToken", 3, 2),
    39: OfferedApi("RenewDelegationToken", 2, 2),
    40: OfferedApi("ExpireDelegationToken", 2, 2),
    41: OfferedApi("DescribeDelegationToken", 3, 2),
    42: OfferedApi("DeleteGroups", 3, 2),
    43: OfferedApi("ElectLeaders", 2, 2),
    44: OfferedApi("IncrementalAlterConfigs", 1, 1),
    45: OfferedApi("AlterPartitionReassignments", 1),
    46: OfferedApi("ListPartitionReassignments", 0),
    47: OfferedApi("OffsetDelete", 0, None),
    48: OfferedApi("DescribeClientQuotas", 1, 1),
    49: OfferedApi("AlterClientQuotas", 1, 1),
    50: OfferedApi("DescribeUserScramCredentials", 0),
    51: OfferedApi("AlterUserScramCredentials", 0),
    Api.DESCRIBE_QUORUM: OfferedApi("DescribeQuorum", 2, addresses_from=2),  # of controllers, which have no port here
    57: OfferedApi("UpdateFeatures", 2),
    Api.DESCRIBE_CLUSTER: OfferedApi("DescribeCluster", 2, addresses_from=0),
    61: OfferedApi("DescribeProducers", 0),
    64: OfferedApi("UnregisterBroker", 0),
    65: OfferedApi("DescribeTransactions", 0),
    66: OfferedApi("ListTransactions", 2),
    68: OfferedApi("ConsumerGroupHeartbeat", 1),
    69: OfferedApi("ConsumerGroupDescribe", 1),
    71: OfferedApi("GetTelemetrySubscriptions", 0),
    72: OfferedApi("PushTelemetry", 0),
    74: OfferedApi("ListConfigResources", 1),
    75: OfferedApi("DescribeTopicPartitions", 0),
    76: OfferedApi("ShareGroupHeartbeat", 1),
    77: OfferedApi("ShareGroupDescribe", 1),
    Api.SHARE_FETCH: OfferedApi("ShareFetch", 2, addresses_from=0),
    Api.SHARE_ACKNOWLEDGE: OfferedApi("ShareAcknowledge", 2, addresses_from=0),
    81: OfferedApi("RemoveRaftVoter", 0),
    83: OfferedApi("InitializeShareGroupState", 0),
    84: OfferedApi("ReadShareGroupState", 0),
    85: OfferedApi("WriteShareGroupState", 1),
    86: OfferedApi("DeleteShareGroupState", 0),
    87: OfferedApi("ReadShareGroupStateSummary", 1),
    88: OfferedApi("StreamsGroupHeartbeat", 1),  # its endpoints are the applications' own
    89: OfferedApi("StreamsGroupDescribe", 1),  # its endpoints are the applications' own
    90: OfferedApi("DescribeShareGroupOffsets", 1),
    91: OfferedApi("AlterShareGroupOffsets", 0),
    92: OfferedApi("DeleteShareGroupOffsets", 0),
    93: OfferedApi("StreamsGroupTopologyDescriptionUpdate", 0),
    94: OfferedApi("UnregisterController", 0),
}


def is_flexible(api_key: int, version: int) -> bool:
    start = OFFERED[api_key].flexible_from
    return start is not None and version >= start

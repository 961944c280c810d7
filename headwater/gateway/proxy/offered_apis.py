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
    version_max     a newer one is hidden; the lowest is the broker's
    flexible_from   versions from there on have compact lengths and tagged fields (KIP-482); None: none has
    addresses_from  versions from there on have addresses in their responses; None: none has
    """

    version_max: int
    flexible_from: int | None = 0
    addresses_from: int | None = None


HIDDEN = frozenset((80, 82))  # AddRaftVoter and UpdateRaftVoter: addresses of controllers, in a request that goes between them

OFFERED: Mapping[int, OfferedApi] = {
    Api.PRODUCE: OfferedApi(13, 9, addresses_from=10),
    Api.FETCH: OfferedApi(18, 12, addresses_from=16),
    2: OfferedApi(11, 6),  # ListOffsets
    Api.METADATA: OfferedApi(13, 9, addresses_from=0),
    8: OfferedApi(10, 8),  # OffsetCommit
    9: OfferedApi(10, 6),  # OffsetFetch
    Api.FIND_COORDINATOR: OfferedApi(6, 3, addresses_from=0),
    11: OfferedApi(9, 6),  # JoinGroup
    12: OfferedApi(4, 4),  # Heartbeat
    13: OfferedApi(5, 4),  # LeaveGroup
    14: OfferedApi(5, 4),  # SyncGroup
    15: OfferedApi(6, 5),  # DescribeGroups
    16: OfferedApi(5, 3),  # ListGroups
    Api.SASL_HANDSHAKE: OfferedApi(1, None),
    Api.API_VERSIONS: OfferedApi(5, 3),
    19: OfferedApi(7, 5),  # CreateTopics
    20: OfferedApi(6, 4),  # DeleteTopics
    21: OfferedApi(2, 2),  # DeleteRecords
    22: OfferedApi(6, 2),  # InitProducerId
    23: OfferedApi(4, 4),  # OffsetForLeaderEpoch
    24: OfferedApi(5, 3),  # AddPartitionsToTxn
    25: OfferedApi(4, 3),  # AddOffsetsToTxn
    26: OfferedApi(5, 3),  # EndTxn
    27: OfferedApi(2, 1),  # WriteTxnMarkers
    28: OfferedApi(6, 3),  # TxnOffsetCommit
    29: OfferedApi(3, 2),  # DescribeAcls
    30: OfferedApi(3, 2),  # CreateAcls
    31: OfferedApi(3, 2),  # DeleteAcls
    32: OfferedApi(4, 4),  # DescribeConfigs
    33: OfferedApi(2, 2),  # AlterConfigs
    34: OfferedApi(2, 2),  # AlterReplicaLogDirs
    35: OfferedApi(5, 2),  # DescribeLogDirs
    Api.SASL_AUTHENTICATE: OfferedApi(2, 2),
    37: OfferedApi(3, 2),  # CreatePartitions
    38: OfferedApi(3, 2),  # CreateDelegationToken
    39: OfferedApi(2, 2),  # RenewDelegationToken
    40: OfferedApi(2, 2),  # ExpireDelegationToken
    41: OfferedApi(3, 2),  # DescribeDelegationToken
    42: OfferedApi(3, 2),  # DeleteGroups
    43: OfferedApi(2, 2),  # ElectLeaders
    44: OfferedApi(1, 1),  # IncrementalAlterConfigs
    45: OfferedApi(1),  # AlterPartitionReassignments
    46: OfferedApi(0),  # ListPartitionReassignments
    47: OfferedApi(0, None),  # OffsetDelete
    48: OfferedApi(1, 1),  # DescribeClientQuotas
    49: OfferedApi(1, 1),  # AlterClientQuotas
    50: OfferedApi(0),  # DescribeUserScramCredentials
    51: OfferedApi(0),  # AlterUserScramCredentials
    Api.DESCRIBE_QUORUM: OfferedApi(2, addresses_from=2),  # of controllers, which have no port here
    57: OfferedApi(2),  # UpdateFeatures
    Api.DESCRIBE_CLUSTER: OfferedApi(2, addresses_from=0),
    61: OfferedApi(0),  # DescribeProducers
    64: OfferedApi(0),  # UnregisterBroker
    65: OfferedApi(0),  # DescribeTransactions
    66: OfferedApi(2),  # ListTransactions
    68: OfferedApi(1),  # ConsumerGroupHeartbeat
    69: OfferedApi(1),  # ConsumerGroupDescribe
    71: OfferedApi(0),  # GetTelemetrySubscriptions
    72: OfferedApi(0),  # PushTelemetry
    74: OfferedApi(1),  # ListConfigResources
    75: OfferedApi(0),  # DescribeTopicPartitions
    76: OfferedApi(1),  # ShareGroupHeartbeat
    77: OfferedApi(1),  # ShareGroupDescribe
    Api.SHARE_FETCH: OfferedApi(2, addresses_from=0),
    Api.SHARE_ACKNOWLEDGE: OfferedApi(2, addresses_from=0),
    81: OfferedApi(0),  # RemoveRaftVoter
    83: OfferedApi(0),  # InitializeShareGroupState
    84: OfferedApi(0),  # ReadShareGroupState
    85: OfferedApi(1),  # WriteShareGroupState
    86: OfferedApi(0),  # DeleteShareGroupState
    87: OfferedApi(1),  # ReadShareGroupStateSummary
    88: OfferedApi(1),  # StreamsGroupHeartbeat: its endpoints are the applications' own
    89: OfferedApi(1),  # StreamsGroupDescribe, as before
    90: OfferedApi(1),  # DescribeShareGroupOffsets
    91: OfferedApi(0),  # AlterShareGroupOffsets
    92: OfferedApi(0),  # DeleteShareGroupOffsets
    93: OfferedApi(0),  # StreamsGroupTopologyDescriptionUpdate
    94: OfferedApi(0),  # UnregisterController
}


def is_flexible(api_key: int, version: int) -> bool:
    start = OFFERED[api_key].flexible_from
    return start is not None and version >= start

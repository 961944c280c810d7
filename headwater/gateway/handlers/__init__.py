"""The requests that are answered: a module for each, whose first lines say which versions, what each of them added, and what is not here.

The lowest versions are those that Kafka 4 itself still speaks.
"""

from headwater.gateway.handlers import (
    api_versions,
    consumer_group_heartbeat,
    describe_cluster,
    fetch,
    find_coordinator,
    join_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
)
from headwater.gateway.protocol import Api

VERSIONS: dict[Api, range] = {
    Api.PRODUCE: produce.VERSIONS,
    Api.FETCH: fetch.VERSIONS,
    Api.LIST_OFFSETS: list_offsets.VERSIONS,
    Api.METADATA: metadata.VERSIONS,
    Api.OFFSET_COMMIT: offset_commit.VERSIONS,
    Api.OFFSET_FETCH: offset_fetch.VERSIONS,
    Api.FIND_COORDINATOR: find_coordinator.VERSIONS,
    Api.JOIN_GROUP: join_group.VERSIONS,
    Api.API_VERSIONS: api_versions.VERSIONS,
    Api.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.VERSIONS,
    Api.DESCRIBE_CLUSTER: describe_cluster.VERSIONS,
    Api.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat.VERSIONS,
}

"""Which settings may hold what lets somebody in.

Brokers take any name for their plug-ins, whose passwords are called as they like: of brokers, only settings of Kafka's own are open that
it can change while it runs, and does not define as passwords. Source: Kafka's documentation, "Updating Broker Configs".
"""

import re

from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER

_NAMED_SO = re.compile(
    r"(.*[._-])?(.*(password|secret|credential|passphrase|token)s?|.*secret.*|(.*\.)?key|user\.info"
    r"|sasl\.jaas\.config|ssl\.keystore\.certificate\.chain|ssl\.truststore\.certificates)",
    re.IGNORECASE,
)
_LISTENER = re.compile(r"\Alistener\.name\.[^.]+\.((gssapi|plain|scram-sha-256|scram-sha-512|oauthbearer)\.)?")
_OPEN_NAMES = """
    advertised.listeners background.threads compression.gzip.level compression.lz4.level compression.type compression.zstd.level
    config.providers connections.max.reauth.ms cordoned.log.dirs errors.deadletterqueue.auto.create.topics.enable
    errors.deadletterqueue.topic.name.prefix follower.fetch.last.tiered.offset.enable follower.replication.throttled.rate
    group.consumer.assignment.interval.ms group.consumer.assignor.offload.enable group.coordinator.cached.buffer.max.bytes
    group.share.assignment.interval.ms group.share.assignor.offload.enable group.streams.assignment.interval.ms
    group.streams.assignor.offload.enable leader.replication.throttled.rate listener.security.protocol.map listeners
    log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size log.cleaner.delete.retention.ms log.cleaner.io.buffer.load.factor
    log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second log.cleaner.max.compaction.lag.ms log.cleaner.min.cleanable.ratio
    log.cleaner.min.compaction.lag.ms log.cleaner.threads log.cleanup.policy log.flush.interval.messages log.flush.interval.ms
    log.index.interval.bytes log.index.size.max.bytes log.local.retention.bytes log.local.retention.ms log.message.downconversion.enable
    log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms log.message.timestamp.difference.max.ms
    log.message.timestamp.type log.preallocate log.remote.copy.lag.bytes log.remote.copy.lag.ms log.retention.bytes log.retention.ms
    log.roll.jitter.ms log.roll.ms log.segment.bytes log.segment.delete.delay.ms max.connection.creation.rate max.connections
    max.connections.per.ip max.connections.per.ip.overrides max.decompressed.message.bytes message.max.bytes metric.reporters
    min.insync.replicas num.io.threads num.network.threads num.recovery.threads.per.data.dir num.replica.fetchers
    principal.builder.class producer.id.expiration.ms remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
    remote.log.index.file.cache.total.size.bytes remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
    remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.max.bytes.per.second
    remote.log.manager.follower.thread.pool.size remote.log.reader.threads replica.alter.log.dirs.io.max.bytes.per.second
    sasl.enabled.mechanisms sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules
    sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    sasl.login.callback.handler.class sasl.login.class sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
    sasl.login.refresh.window.factor sasl.login.refresh.window.jitter sasl.mechanism.inter.broker.protocol
    sasl.server.callback.handler.class share.coordinator.cached.buffer.max.bytes ssl.cipher.suites ssl.client.auth ssl.enabled.protocols
    ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.keymanager.algorithm ssl.keystore.location ssl.keystore.type
    ssl.principal.mapping.rules ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
    ssl.truststore.location ssl.truststore.type transaction.partition.verification.enable unclean.leader.election.enable
    """
_OPEN_OF_BROKERS = frozenset(_OPEN_NAMES.split())


def is_secret_setting(resource_type: int, name: str) -> bool:
    """May the value of this setting let somebody in? Of brokers: unless it is known not to."""
    if resource_type != RESOURCE_BROKER:
        return _NAMED_SO.fullmatch(name) is not None
    return _LISTENER.sub("", name, count=1) not in _OPEN_OF_BROKERS

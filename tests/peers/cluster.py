"""Three brokers and an agent beside each, in one control log and over one bucket."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Self

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from headwater.agent_api import AgentApi
from tests.peers.agent import Agent, Headwater
from tests.peers.kafka import KafkaBroker, free_port

NODES = 3
BROKER_PROPERTIES = {
    "offsets.topic.replication.factor": NODES,
    "transaction.state.log.replication.factor": NODES,
    "min.insync.replicas": 2,
    "unclean.leader.election.enable": "false",
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 4_000,
    "log.cleaner.backoff.ms": 200,
    "log.segment.delete.delay.ms": 500,
    "log.retention.check.interval.ms": 1_000,
    "log.cleaner.min.cleanable.ratio": 0.01,
}
# For those where nothing depends on how soon the others notice that one was killed: on a busy machine a JVM may stand still for seconds.
PATIENT = {"broker.session.timeout.ms": 9_000, "replica.lag.time.max.ms": 30_000}
_PATIENCE_S = 180
SERVING = "serving on "


class Cluster:
    """with Cluster(root) as cluster: everything runs; at the end everything is killed that still does.

    archival  settings of all agents under [archival], as TOML; topics: further sections. The last agent does not ask its broker
    log_dirs  of its brokers, instead of new ones
    bucket    of its agents, instead of a new one
    broker    what makes a broker of it
    format_options  more arguments of kafka-storage
    """

    starts_agents = True

    def __init__(
        self,
        root: Path,
        archival: str,
        topics: str,
        *,
        log_dirs: Sequence[Path] = (),
        bucket: Path | None = None,
        broker: Callable[..., KafkaBroker] = KafkaBroker,
        format_options: Sequence[str] = (),
    ) -> None:
        self._format_options = format_options
        ports = [(free_port(), free_port()) for _ in range(NODES)]
        voters = ",".join(f"{node}@127.0.0.1:{controller}" for node, (_, controller) in enumerate(ports, 1))
        log_dirs = log_dirs or [root / f"kafka-{node}" for node in range(1, NODES + 1)]
        self.brokers = [
            broker(
                log_dirs[node - 1],
                root / f"broker-{node}",
                properties=BROKER_PROPERTIES | {"node.id": node, "controller.quorum.voters": voters},
                ports=ports[node - 1],
            )
            for node in range(1, NODES + 1)
        ]
        self.bootstrap = ",".join(each.bootstrap for each in self.brokers)
        peers = [f"127.0.0.1:{free_port()}" for _ in range(NODES)]
        self.agents: list[Agent | None] = [None] * NODES
        self._served = [0] * NODES  # how often each did before its present life
        bucket = bucket or root / "bucket"
        self.headwaters = [
            _headwater(root / f"agent-{node}", each, bucket, own, [peer for peer in peers if peer != own], archival, topics)
            for node, each, own in zip(range(1, NODES + 1), self.brokers, peers, strict=True)
        ]

    def __enter__(self) -> Self:
        if not any((broker.log_dir / "meta.properties").exists() for broker in self.brokers):
            self._format()
        try:
            for broker in self.brokers:
                broker.launch()
            for broker in self.brokers:
                broker.wait_ready()
            for at in range(NODES if self.starts_agents else 0):
                self.start_agent(at)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _format(self) -> None:
        cluster_id = ""
        for broker in self.brokers:
            cluster_id = broker.format(cluster_id, *self._format_options)

    def kill(self) -> None:
        """All of it, by SIGKILL."""
        for agent in self.agents:
            if agent:
                agent.kill()
        for broker in self.brokers:
            broker.kill()

    def start_agent(self, at: int) -> None:
        output = self.headwaters[at].file.with_name("agent.out")
        self._served[at] = output.read_text(errors="replace").count(SERVING) if output.exists() else 0
        self.agents[at] = Agent(self.headwaters[at])

    def wait_for_agents(self) -> None:
        """Until each serves in its present life."""
        until_s = time.monotonic() + _PATIENCE_S
        for agent, served in zip(self.agents, self._served, strict=True):
            assert agent
            while agent.log_text().count(SERVING) <= served:
                assert not agent.has_ended(), agent.log_text()[-4000:]
                assert time.monotonic() < until_s
                time.sleep(0.2)

    def kill_agent(self, at: int) -> None:
        agent = self.agents[at]
        assert agent
        assert not agent.has_ended(), agent.log_text()[-4000:]
        agent.kill()
        self.agents[at] = None

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def leader(self, topic: str, partition: int = 0) -> int:
        """Which of `brokers` leads."""
        return int(self.admin.list_topics(topic, timeout=20).topics[topic].partitions[partition].leader) - 1

    def wait_in_sync(self) -> None:
        """Every partition has all its replicas in sync: another broker may go."""
        wait_in_sync(self.bootstrap)

    def bounds(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Log start and high watermark of every partition, as its leader says."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "bounds"})
        try:
            return {
                (name, number): consumer.get_watermark_offsets(TopicPartition(name, number), timeout=30)
                for name, topic in self.admin.list_topics(timeout=20).topics.items()
                for number in topic.partitions
            }
        finally:
            consumer.close()

    def log_text(self) -> str:
        return "\n".join(each.file.with_name("agent.out").read_text(errors="replace")[-3000:] for each in self.headwaters)


def wait_in_sync(bootstrap: str, replicas: int = 1) -> None:
    """Every partition has all its replicas in sync, and so many at least."""
    until_s = time.monotonic() + _PATIENCE_S
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    while True:
        try:
            topics = admin.list_topics(timeout=5).topics
            lagging = [
                f"{name}:{number}"
                for name, topic in topics.items()
                for number, partition in topic.partitions.items()
                if len(partition.isrs) < max(replicas, len(partition.replicas)) or partition.leader < 0
            ]
            if topics and not lagging:
                return
        except KafkaException as error:
            lagging = [str(error)]
        assert time.monotonic() < until_s, lagging
        time.sleep(0.3)


class Chaos:
    """Brokers and agents that stop, one of each kind at a time, and come back."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self._cluster, self._random = cluster, random
        self.done: list[str] = []

    def kill_leader(self, topic: str) -> None:
        at = self._cluster.leader(topic, self._random.randrange(2))
        self._cluster.brokers[at].kill()
        time.sleep(self._random.uniform(0, 4))
        self._return(at, "leader killed")

    def restart_broker(self) -> None:
        at = self._random.randrange(NODES)
        self._cluster.brokers[at].stop()
        self._return(at, "broker restarted")

    def kill_agent(self) -> None:
        at = self._random.randrange(NODES)
        self._cluster.kill_agent(at)
        time.sleep(self._random.uniform(0, 2))
        self._cluster.start_agent(at)
        self.done.append(f"agent {at + 1} killed")

    def pause(self, topic: str) -> None:
        """Its archiving, by one agent for all of them, for a moment."""
        at = self._random.randrange(NODES)
        self._cluster.wait_for_agents()
        for verb in ("pause", "resume"):
            api = AgentApi(self._cluster.headwaters[at].config.node.data_dir)
            list(api.rows(f"/v1/{verb}", {"selection": topic, "by": "chaos"}, timeout_s=60))
            time.sleep(self._random.uniform(0, 2))
        self.done.append(f"{topic} paused by {at + 1}")

    def _return(self, at: int, what: str) -> None:
        self._cluster.brokers[at].start()
        self._cluster.wait_in_sync()
        self.done.append(f"{what}: {at + 1}")


def _headwater(work: Path, broker: KafkaBroker, bucket: Path, listen: str, peers: list[str], archival: str, topics: str) -> Headwater:
    made = Headwater(work, broker.log_dir, store=f'url = "file://{bucket}"')
    text = made.file.read_text().replace('id = "peer"', f'id = "{work.name}"')
    if not work.name.endswith(str(NODES)):
        text = text.replace("[store]", f'bootstrap_servers = ["{broker.bootstrap}"]\n[store]')
    before, _, after = text.replace("[archival]", f"[archival]\n{archival}").partition("[control]\n")
    others = ", ".join(f'"{peer}"' for peer in peers)
    made.file.write_text(f'{before}[control]\nlisten = "{listen}"\npeers = [{others}]\n{after.partition(chr(10))[2]}{topics}')
    return made

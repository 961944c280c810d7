"""Three brokers with TLS, passwords and ACLs, each with a proxy before them, and clients that know the proxies alone.

A group reads from the archive's first record to the live end. Meanwhile agents archive, merge, release and evict, leaders move, a broker
and a proxy are killed. Each committed record comes once and in order, and no client ever has a connection to a broker.

PROXY_S sets for how long things go wrong (seconds).
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType  # type: ignore[attr-defined]  # its stub re-exports nothing

from tests.headwater.gateway.certificate_files import CertificateFiles, an_authority, issued
from tests.peers.agent import ROOT
from tests.peers.cluster import NODES, Cluster
from tests.peers.guarded import acl, add_acls
from tests.peers.kafka import KafkaBroker, free_port

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.xdist_group("lost")]  # one cluster of three brokers at a time

PROXY_S = float(os.environ.get("PROXY_S", "30"))
PLAIN_TOPIC, PAID_TOPIC = "plain.events", "paid.orders"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PATIENCE_S = 180
ARCHIVAL = 'gc_interval = "60s"\nreader_lease = "20s"\nsuperseded_retention = "30s"\nmerge_bytes = "64KiB"\nmerge_after = "2s"\n'
RELEASED = "".join(f'[topics."{topic}"]\nrelease = true\nrelease_past_groups = true\n' for topic in (PLAIN_TOPIC, PAID_TOPIC))
SMALL = {"internal_segment_bytes": 8192, "min_insync_replicas": 2}


class FencedBroker(KafkaBroker):
    """At an address of its own: whoever has a connection to it has its address."""

    def __init__(self, log_dir: Path, work: Path, *, properties: Mapping[str, Any], ports: tuple[int, int], both: Path) -> None:
        host, own = f"127.0.0.{10 + int(properties['node.id'])}", free_port()
        super().__init__(
            log_dir,
            work,
            ports=ports,
            properties={
                **properties,
                "listeners": f"PLAINTEXT://{host}:{ports[0]},OURS://{host}:{own},CONTROLLER://127.0.0.1:{ports[1]}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OURS:SASL_SSL",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.ours.plain.sasl.jaas.config": f'{LOGIN} user_proxy="p" user_bob="b";',
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": both,
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
            },
        )
        self.bootstrap, self.secured = f"{host}:{ports[0]}", f"{host}:{own}"


class ProxiedClient:
    """One of tests.peers.proxied_clients. facts: what it has told; hosts: to which it had connections"""

    def __init__(self, kind: str, settings: Mapping[str, Any]) -> None:
        command = [sys.executable, "-m", "tests.peers.proxied_clients", kind, json.dumps(settings), PLAIN_TOPIC, PAID_TOPIC]
        self.facts, self.hosts = list[dict[str, Any]](), set[str]()
        self.errors = TemporaryFile("w+")  # noqa: SIM115  # as long as the process
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, text=True, cwd=ROOT)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._listen, self._look)]
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.facts.append(json.loads(line))

    def _look(self) -> None:
        while self.is_running:
            self.hosts |= peers_of(self._process.pid)
            time.sleep(0.05)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def records(self) -> Iterator[tuple[tuple[str, int], int, str]]:
        for fact in list(self.facts):
            if "offset" in fact:
                yield (fact["topic"], fact["partition"]), fact["offset"], fact["value"]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.errors.close()

    def error_text(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-4000:]


def peers_of(pid: int) -> set[str]:
    """Hosts to which a process has IPv4 connections, by what the kernel says of its sockets."""
    try:
        links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        table = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return set()
    sockets = {link[8:-1] for link in links if link.startswith("socket:[")}
    remote = (row.split()[2].partition(":")[0] for row in table if row.split()[9] in sockets)
    return {".".join(str(int(address[at : at + 2], 16)) for at in (6, 4, 2, 0)) for address in remote}


@contextmanager
def proxied_cluster(root: Path) -> Iterator[tuple[Cluster, list[str], CertificateFiles]]:
    """With the addresses of its proxies, and the authority that all trust."""
    authority = an_authority(root)
    mine = issued(root, authority)
    both, file = root / "both.pem", root / "client.properties"
    both.write_text(mine.key.read_text() + mine.certificate.read_text())
    file.write_text(
        f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={authority.certificate}\nsasl.mechanism=PLAIN\n"
        f'ssl.endpoint.identification.algorithm=\nsasl.jaas.config={LOGIN} username="proxy" password="p";\n'
    )

    def fenced(log_dir: Path, work: Path, **how: Any) -> FencedBroker:
        return FencedBroker(log_dir, work, both=both, **how)

    cluster = Cluster(root, ARCHIVAL, RELEASED, broker=fenced)
    secured = ",".join(broker.secured for broker in cluster.brokers if isinstance(broker, FencedBroker))
    addresses = []
    for headwater in cluster.headwaters:
        address, ports = f"127.0.0.1:{free_port()}", [f"{node}:{free_port()}" for node in range(1, NODES + 1)]
        addresses.append(address)
        gateway = (
            f'[gateway]\nlisten = "{address}"\nupstream = "{secured}"\nupstream_port_map = {json.dumps(ports)}\n'
            f'upstream_properties = "{file}"\ntls_certificate = "{mine.certificate}"\ntls_key = "{mine.key}"\n'
        )
        text = headwater.file.read_text().replace('[gateway]\nlisten = "127.0.0.1:0"\n', gateway)
        headwater.file.write_text(text.replace('cache_bytes = "64MiB"', 'cache_bytes = "1MiB"\nchunk_bytes = "64KiB"'))
    with cluster:
        cluster.wait_for_agents()
        yield cluster, addresses, authority


def wait_until(what: str, is_true: Any, patience_s: float = PATIENCE_S) -> None:
    until_s = time.monotonic() + patience_s
    while not is_true():
        assert time.monotonic() < until_s, what() if callable(what) else what
        time.sleep(0.5)


def test_each_record_comes_once_and_in_order_whatever_happens_before_and_to_the_proxies(tmp_path: Path) -> None:
    random = Random(5)
    with proxied_cluster(tmp_path) as (cluster, addresses, authority):
        for topic in (PLAIN_TOPIC, PAID_TOPIC):
            cluster.brokers[0].create_topic(topic, 2, 3, **SMALL)
        rules = [
            acl(kind, name, "bob", AclOperation.ALL, AclPermissionType.ALLOW)
            for kind, name in (
                (ResourceType.TOPIC, PLAIN_TOPIC),
                (ResourceType.TOPIC, PAID_TOPIC),
                (ResourceType.GROUP, "readers"),
                (ResourceType.TRANSACTIONAL_ID, "writer"),
            )
        ]
        add_acls(cluster.admin, rules)
        login = {"sasl.username": "bob", "sasl.password": "b", "sasl.mechanism": "PLAIN", "security.protocol": "SASL_SSL"}
        settings = {"bootstrap.servers": ",".join(addresses), "ssl.ca.location": str(authority.certificate), **login}
        writer = ProxiedClient("write", settings)
        clients = [writer]
        try:
            wait_until("records are released", lambda: sum(start for start, _ in bounds(cluster).values()) > 400)
            reader = ProxiedClient("read", settings)
            clients.append(reader)
            until_s = time.monotonic() + PROXY_S
            while time.monotonic() < until_s:
                at = cluster.leader(random.choice((PLAIN_TOPIC, PAID_TOPIC)))
                cluster.brokers[at].kill()
                time.sleep(random.uniform(0, 4))
                cluster.brokers[at].start()
                cluster.wait_in_sync()
                agent = random.randrange(NODES)
                cluster.kill_agent(agent)
                time.sleep(random.uniform(0, 2))
                cluster.start_agent(agent)
                cluster.wait_for_agents()
            for client in clients:
                assert client.is_running, client.error_text()
            time.sleep(3)
            writer.stop()
            check(writer, reader, cluster)
        finally:
            for client in clients:
                client.stop()


def bounds(cluster: Cluster) -> dict[tuple[str, int], tuple[int, int]]:
    return {place: found for place, found in cluster.bounds().items() if place[0] in (PLAIN_TOPIC, PAID_TOPIC)}


def check(writer: ProxiedClient, reader: ProxiedClient, cluster: Cluster) -> None:
    acknowledged: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for log, offset, value in writer.records():
        assert acknowledged[log].setdefault(offset, value) == value

    def lacking() -> list[Any]:
        read = {(log, offset) for log, offset, _ in reader.records()}
        return [(log, offset) for log, values in acknowledged.items() for offset in values if (log, offset) not in read]

    wait_until(lambda: f"not read: {lacking()[:20]}; {cluster.log_text()}", lambda: not lacking(), 90)  # type: ignore[arg-type]
    last: dict[tuple[str, int], int] = {}
    for log, offset, value in reader.records():
        assert offset > last.get(log, -1), f"{log} has {offset} after {last[log]}"
        last[log] = offset
        assert value == acknowledged[log].get(offset, value)
        assert " aborted " not in value
    starts = bounds(cluster)
    firsts = {log: min(offset for place, offset, _ in reader.records() if place == log) for log in last}
    assert any(firsts[log] < starts[log][0] for log in firsts), "nothing was read from the archive"
    for client in (writer, reader):
        assert not [fact for fact in client.facts if "error" in fact], client.facts[-5:]
        assert client.hosts <= {"127.0.0.1", "0.0.0.0"}, client.hosts  # of a socket that is not connected

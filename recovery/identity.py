"""Made-up names of a recovered cluster and its directory."""

import base64
from uuid import uuid4


def new_kafka_id() -> str:
    """Kafka's text of a random UUID. It never begins with a dash, which Kafka's own tools would take for an option."""
    raw = uuid4().bytes
    return base64.urlsafe_b64encode(bytes([raw[0] & 0x7F]) + raw[1:]).decode()[:22]

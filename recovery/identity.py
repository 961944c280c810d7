"""Made-up names of a recovered cluster and its directory."""

import base64
import hashlib
from uuid import uuid4


def new_kafka_id() -> str:
    """Kafka's text of a random UUID. It never begins with a dash, which Kafka's own tools would take for an option."""
    return _text(uuid4().bytes)


def derived_kafka_id(from_id: str, number: int) -> str:
    """The same each time, and another one for each number."""
    return _text(hashlib.blake2b(f"{from_id}/{number}".encode(), digest_size=16).digest())


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(bytes([raw[0] & 0x7F]) + raw[1:]).decode()[:22]

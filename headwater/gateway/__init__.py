"""Kafka-protocol endpoint over a log directory and its archive, read-only."""

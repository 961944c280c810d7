"""Kafka's log directories, batches, records and indexes; what a run of batches is."""

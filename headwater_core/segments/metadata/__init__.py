"""What a Kafka cluster says about itself in its metadata log."""

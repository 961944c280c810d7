"""The broker beside this agent, asked over Kafka's protocol: how far its logs are committed, and to delete what is archived."""

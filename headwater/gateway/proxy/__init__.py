"""A proxy in front of the brokers of a cluster: what clients send passes, and addresses in what brokers answer become the proxy's own."""

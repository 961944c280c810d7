"""What the bucket holds: manifests, chunks, and bringing them here, each once however many ask."""

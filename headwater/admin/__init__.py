"""The agent's API: health, metrics, status and operations, over HTTP."""

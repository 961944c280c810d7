"""The admin port: health, metrics and status of a running agent, over HTTP."""

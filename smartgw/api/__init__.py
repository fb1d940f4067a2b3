"""The HTTP API of the gateway."""

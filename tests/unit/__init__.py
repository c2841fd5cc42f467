"""No network, no Redis, no other process."""

"""Partition assignors, shared by the broker (broker-side groups) and the client (classic groups)."""

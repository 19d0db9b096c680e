"""Broker-side consumer groups (KIP-848): the coordinator assigns, members move partition by partition."""

"""Coordinators as replicated state machines: a shard per partition of an internal topic, and what runs them."""

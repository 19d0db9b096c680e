"""Ottla's operator: `Cluster`, `Topic` and `ConsumerGroup` resources are the truth, and drift is repaired."""

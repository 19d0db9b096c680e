"""Ottla's operator: reconciles `Cluster`, `Topic` and `ConsumerGroup` resources and repairs drift."""

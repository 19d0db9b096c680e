"""Kafka's record batch v2: header view, records inside, control records."""

"""Metrics that are collected when Prometheus asks: partitions, disks, consumer lag."""

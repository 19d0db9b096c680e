"""Partitions on this broker: log, leadership, high watermark, and the requests that wait for it."""

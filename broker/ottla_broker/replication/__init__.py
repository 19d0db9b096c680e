"""Copies of a partition: the machines that decide, the frames that travel, and the shells that move both."""

"""Partitions as this broker hosts them: a log, who leads it, how far it is committed, and who waits for that."""

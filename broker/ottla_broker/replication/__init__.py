"""Replication of partitions: the leader and follower machines, the frames of the Follow stream, and their shells."""

"""Consumer groups: membership by Kafka's classic protocol, and committed offsets. No clock, no loop, no disk."""

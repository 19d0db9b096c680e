"""Apache Kafka and Ottla side by side, driven by the same stock client."""

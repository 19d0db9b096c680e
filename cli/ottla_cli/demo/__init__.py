"""`make demo`: Ottla in three chapters, on a cluster of three brokers that is removed afterwards."""

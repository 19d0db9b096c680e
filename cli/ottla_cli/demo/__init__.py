"""`make demo`: what Ottla is, shown in three chapters on a cluster of three brokers that is gone afterwards."""

"""The whole of Ottla on a real Kubernetes: `make e2e`."""

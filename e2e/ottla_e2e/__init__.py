"""End-to-end test of Ottla on a real Kubernetes: `make e2e`."""

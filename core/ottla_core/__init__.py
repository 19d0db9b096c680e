"""Formats, identifiers, errors and ports: what brokers and clients agree on. Imports no sibling package."""

"""Formats, identifiers, errors and ports: what brokers and clients agree on. Imports no sibling package."""

from ottla_core.compiled import prefer_compiled

prefer_compiled()

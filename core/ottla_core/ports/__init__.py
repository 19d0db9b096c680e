"""Interfaces to the outside, as protocols: production passes `ottla_core.real`, the simulation its own."""

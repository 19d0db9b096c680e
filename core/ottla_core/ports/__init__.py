"""The ways out of the process, as protocols: production passes `ottla_core.real`, the simulation its twins."""

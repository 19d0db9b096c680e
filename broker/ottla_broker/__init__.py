import ottla_core  # noqa: F401  # prefers compiled modules, also those of this package

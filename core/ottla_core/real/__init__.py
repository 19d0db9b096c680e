"""The ports in production: the operating system's clock, files and threads."""

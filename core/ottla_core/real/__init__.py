"""The ports as production has them: the operating system's clock, files and threads."""

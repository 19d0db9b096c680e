"""`python -m ottla_cli` is `ottla`. [A]"""

from __future__ import annotations

from ottla_cli.main import main

if __name__ == "__main__":
    main()

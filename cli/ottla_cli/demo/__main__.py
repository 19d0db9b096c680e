"""python -m ottla_cli.demo"""

import sys

from ottla_cli.demo.story import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m halocline`: the command, for launchers that start Python modules."""

import sys

from halocline.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""python -m ddpcheck, and the `ddpcheck` command."""

from __future__ import annotations

import sys

from ddpcheck.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

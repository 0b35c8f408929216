"""``python -m stack`` is ``cu130-stack``."""

import sys

from stack.cli import main

sys.exit(main())

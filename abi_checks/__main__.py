"""``python -m abi_checks`` is ``abi-check``."""

import sys

from abi_checks.cli import main

sys.exit(main())

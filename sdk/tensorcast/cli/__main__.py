"""`python -m tensorcast.cli`."""

from __future__ import annotations

import sys

from tensorcast.cli.main import main

sys.exit(main())

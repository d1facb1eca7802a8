"""Run the command line as `python -m boardclient`."""

import sys

from boardclient.cli import main

sys.exit(main())

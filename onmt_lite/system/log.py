"""The logger of the program."""

import logging

LOG = logging.getLogger("onmt_lite")

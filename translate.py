#!/usr/bin/env python3
"""Translate from the command line in a checkout; see `python translate.py -help`."""

import sys

from onmt_lite.__main__ import main

if __name__ == "__main__":
    sys.exit(main())

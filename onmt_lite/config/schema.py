"""One definition of an option serves the command line, YAML, help, validation and Python.

An option is a field of a frozen dataclass, made with `opt`.  A schema is the list of those
dataclasses (its groups, each with a title); field names are unique across groups, so the
command line and YAML are flat.  Sources are merged default < YAML files < command line, and every
problem in all of them is collected before anything is raised.
"""

from onmt_lite.config.conditions import asks, idle, refusals
from onmt_lite.config.foreign import Foreign, as_words
from onmt_lite.config.help import help_on, help_text, markdown_table
from onmt_lite.config.json_schema import json_schema
from onmt_lite.config.option import DEVICE, META, META_NAMES, Option, check, opt, options_of
from onmt_lite.config.program import Program
from onmt_lite.config.sources import Resolved, Resolver, load, split_argv

__all__ = [
    "DEVICE",
    "META",
    "META_NAMES",
    "Foreign",
    "Option",
    "Program",
    "Resolved",
    "Resolver",
    "as_words",
    "asks",
    "check",
    "help_on",
    "help_text",
    "idle",
    "json_schema",
    "load",
    "markdown_table",
    "opt",
    "options_of",
    "refusals",
    "split_argv",
]

"""One definition of an option serves the command line, YAML, help, validation and Python.

An option is a field of a frozen dataclass, made with `opt`.  A schema is the list of those
dataclasses (its groups, each with a title); field names are unique across groups, so the
command line and YAML are flat.  Sources are merged default < YAML files < command line, and every
problem in all of them is collected before anything is raised.
"""

from onmt_lite.schema.foreign import Foreign
from onmt_lite.schema.option import META, META_NAMES, Option, opt, options_of
from onmt_lite.schema.sources import Resolved, Resolver, load
from onmt_lite.schema.tables import help_text, markdown_table

__all__ = [
    "META",
    "META_NAMES",
    "Foreign",
    "Option",
    "Resolved",
    "Resolver",
    "help_text",
    "load",
    "markdown_table",
    "opt",
    "options_of",
]

"""A program, as far as its options go."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onmt_lite.config.foreign import Foreign
from onmt_lite.config.option import Option


@dataclass(frozen=True, eq=False)
class Program:
    """What -help and -print_schema speak of.

    name     the command that it is installed as, or a name of that kind
    usage    what follows the command in the help
    foreign  options of another program that its YAML files may hold
    """

    name: str
    usage: str
    options: Mapping[str, Option]
    foreign: Mapping[str, Foreign] = field(default_factory=dict)

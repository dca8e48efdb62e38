"""Options: their declarations, where values come from, and the shell of every program."""

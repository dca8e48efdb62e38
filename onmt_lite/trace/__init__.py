"""Search traces for -dump_beam: `tracer` records a search, `page` renders it."""

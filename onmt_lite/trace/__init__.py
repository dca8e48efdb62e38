"""Trace: observes the decode loop for -dump_beam (`tracer`), and shows what it saw (`page`)."""

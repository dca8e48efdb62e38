"""Models of all toolkits, read and written.

A reader returns the model that a file holds, or raises CheckpointError: for damage, contradictions,
and models of kinds that are not read.  Nothing of a file is run.
"""

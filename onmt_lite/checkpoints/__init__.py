"""Reading and writing models of all supported toolkits.

Readers return a Checkpoint, or raise CheckpointError for damaged, inconsistent and unsupported
files.  No code from a model file is executed.
"""

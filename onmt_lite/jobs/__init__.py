"""Jobs: lines of an input to an output, in buckets, by one process or by several."""

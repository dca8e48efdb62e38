"""Access to the machine: files, processors, terminal, log.  Independent of models and options."""

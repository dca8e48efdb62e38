"""Model files to models, and back for an export: one folder for each toolkit."""

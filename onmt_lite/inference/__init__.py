"""Lines to translations, without files."""

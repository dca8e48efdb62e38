"""The machine below the program: no model, no text, no options."""

"""Directories of Hugging Face transformers."""

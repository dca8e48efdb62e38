"""Readers for Hugging Face transformers directories."""

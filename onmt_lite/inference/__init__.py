"""Inference: lines to translations, without files.

Modules in the order in which data passes: `runtime` and `loading` make a model ready, `pipeline`
calls the others.  Of each call: `inputs`, `paragraphs`, `languages`, `preprocess`, `duplicates`;
`search_setup`, `batching`, `budget`, `runner`; `postprocess`, `alignment`, `notes`.  `records` has
the types that travel, `trace` and `trace_page` show a search step by step.
"""

"""Inference: lines to translations, without files.

Modules in the order in which data passes: `loading` and `runtime` make a model ready, `pipeline`
calls the others.  Of each call: `paragraphs`, `preprocess`; `search_setup`, `runner`;
`postprocess`, `alignment`.  `records` has the types that travel.
"""

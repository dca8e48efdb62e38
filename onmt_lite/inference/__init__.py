"""Inference: lines to translations, without file access.

`loading` and `runtime` prepare a model, and `pipeline` calls the other modules. Each call uses
`paragraphs` and `preprocess`; `search_setup` and `runner`; `postprocess` and `alignment`. `records`
defines the types passed between them.
"""

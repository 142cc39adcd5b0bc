"""What keeps the documentation true: it is parsed, its reference pages are generated, its commands are run.

`pages` reads Markdown, `commands` judges a command line without running it, `links` finds links that lead nowhere,
`reference` writes the generated pages, `run` carries a page out against a cluster of its own (`make docs-check`).
"""

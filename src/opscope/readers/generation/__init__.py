"""Reports of tools that time the phases of a language model: no operators, but prompts and tokens."""

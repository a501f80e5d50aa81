"""A draft with a small output head in the forms that engines load: `widedraft export --form`.

`whole`: the head has a row for every id again. Any engine loads it, and nothing is faster.
`own-tokenizer`: a model and a tokenizer of the kept tokens alone, for vLLM's `use_heterogeneous_vocab`.
"""

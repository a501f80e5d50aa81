"""Model types of which an engine lacks something, whatever a config says."""

# Of these model types an engine has no output head but the embedding: it leaves lm_head.weight out.
# Sources: vLLM 0.32, models/gemma2.py; SGLang 0.5.23, models/gemma2.py, gemma3_causal.py and gpt2.py; llama.cpp,
# conversion/gemma.py
HEAD_IS_EMBEDDING: dict[str, tuple[str, ...]] = {
    "gemma2": ("vLLM", "SGLang", "llama.cpp"),
    "gemma3_text": ("SGLang", "llama.cpp"),
    "gpt2": ("SGLang",),
}
WITHOUT_VLLM = {  # of drafts that have a vocabulary of their own
    "gemma2": "vLLM's Gemma 2 has no output head but the embedding",
    "gpt_neox": "vLLM has no GPT-NeoX of its own",
}


def engines_without_head(model_type: str) -> str | None:
    """The engines that take a head of this model type to be the embedding, in words; None if there are none."""
    *others, last = HEAD_IS_EMBEDDING.get(model_type, (None,))
    return f"{', '.join(map(str, others))} and {last}" if others else last

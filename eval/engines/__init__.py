"""Inference engines: vLLM and SGLang, offline or as servers."""

"""A Hugging Face folder of the LLaMA family as a GGUF file, which llama.cpp loads: the way back of architectures.gguf.

Names, row order and metadata are those of llama.cpp's own converter (`conversion/` there), so that its checks of a
draft against its target see no difference. What llama.cpp would compute otherwise than transformers is refused.
"""

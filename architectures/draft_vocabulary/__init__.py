"""The token ids a draft can output, where they are fewer than its target's: a small output head.

The input embedding stays whole: a draft reads every token. Only rows of the output head are cut, to the ids that the
target says most. Every other id has probability zero, so that it costs the draft that token and nothing else: rejection
sampling stays lossless whatever the draft cannot output.

Source: FR-Spec, Zhao et al. 2025 (arXiv 2502.14856), and VocabTrim, Goel et al. 2025 (arXiv 2506.22694).
"""

"""Answers of the target that an inference engine decodes: asked by token ids, checked against the target here."""

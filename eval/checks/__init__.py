"""Proofs on a pair that decodes: lossless, who wrote what, and whether answers stay right."""

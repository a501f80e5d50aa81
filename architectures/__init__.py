"""Draft architectures: shapes, pruning and checkpoint formats. Never imports Composer."""

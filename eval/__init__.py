"""How good a draft is: acceptance, latency, speed-up, for any two Hugging Face checkpoints. Never imports Composer."""

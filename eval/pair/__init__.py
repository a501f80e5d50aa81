"""What is shown of a pair that decodes: proof that it is lossless, a race, and who wrote which token."""

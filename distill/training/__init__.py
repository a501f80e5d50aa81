"""The student, the trainer, and what they train on."""

"""What a budget of text, answers and minutes makes of a draft, by a law fitted to trainings measured on this target."""

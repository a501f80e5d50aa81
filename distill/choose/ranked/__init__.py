"""Which shape of draft will be the fastest here: step times first, then short trainings, then a recipe."""

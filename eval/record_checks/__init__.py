"""What a scorecard from a file must hold before anything reads it."""

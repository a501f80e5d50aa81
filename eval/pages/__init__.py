"""What scorecards say in words and tables, and the blocks that pages are made of."""

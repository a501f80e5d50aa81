"""What every page is made of, as Markdown and as text for a terminal; eval.report makes HTML of the same blocks."""

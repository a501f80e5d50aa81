"""How many proposed tokens a target keeps: counts, exact replay, intervals, and what that promises."""

"""What comes with widedraft beside its code: recipes and prompts, figures of devices, and where a target is had."""

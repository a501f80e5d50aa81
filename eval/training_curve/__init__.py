"""Every saved checkpoint of a training on the same answers: acceptance and predicted speed against tokens trained."""

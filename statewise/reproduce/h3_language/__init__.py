"""Eight language models of the same size, trained on the same text."""

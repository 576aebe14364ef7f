"""Of labelled data: classes and numbers that a model names for whole sequences."""

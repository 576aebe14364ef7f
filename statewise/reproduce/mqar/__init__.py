"""Multi-query associative recall: what a state of so many numbers recalls."""

"""Seven models on the two languages by which H3 was found."""

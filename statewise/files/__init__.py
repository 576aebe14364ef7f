"""Files that others made, opened: compressed, in archives, arrays, pictures; with limits, and one error, DataError."""

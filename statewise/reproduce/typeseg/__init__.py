"""A trained bidirectional Mamba that others published, rebuilt from the operators here and compared with its own."""

"""The Long Range Arena: S4, S4D, H3 and a Transformer, at the published settings or at a size for this machine."""

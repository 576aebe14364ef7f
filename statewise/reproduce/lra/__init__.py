"""The Long Range Arena: S4, S4D, H3, Mamba-2 and a Transformer, with the published settings or at a size of yours."""

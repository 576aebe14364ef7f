"""Your own labelled sequences: folders of pictures and sounds, tables, arrays; for training and for prediction."""

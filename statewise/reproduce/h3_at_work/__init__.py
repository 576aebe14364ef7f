"""What the two SSMs and the two products of an H3 layer do, on an example and in a trained layer."""

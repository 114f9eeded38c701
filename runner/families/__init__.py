"""What differs between models: how a family samples, lays out its prompt, gives positions, merges and masks."""

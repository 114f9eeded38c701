"""Packed forwards of vision towers: transformers' own submodules and weights, rows of many clips in one batch. The
caller hands in the attention; a tower knows no text, no requests and not why some cells are missing."""

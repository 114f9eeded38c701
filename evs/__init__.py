"""Efficient Video Sampling: which cells of a clip to keep. Knows no codecs, no models, no HTTP."""

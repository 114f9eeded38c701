"""Paged attention backends, multimodal-prefix masks and the bridge into transformers. Knows no models, no requests."""

"""The engine: admission, scheduling, KV pages, the model runner, sampling and the model families. Knows no HTTP."""

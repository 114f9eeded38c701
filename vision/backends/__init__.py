"""The decoders that pictures can come from, behind one protocol; PyAV is the one that can do everything."""

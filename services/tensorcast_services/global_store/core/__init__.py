"""The pure part of the global store: no clock, no bus, no file. ``machine`` is its front."""

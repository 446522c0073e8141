"""Engine adaptors: one small class an engine, plug-in only. They come with the instance operations; none is here."""

"""The shared language of all TensorCast processes: words, never bytes of tensors.

Records, subjects, codecs and errors are pure. `exchange`, `asking` and `loopback` run on the caller's event loop; only
the room ``nats`` opens sockets. Importable by every floor; imports no other floor. The local socket between a client
and its storage belongs to the native floor; ``notes`` only holds the records that travel inside its opaque bodies.
"""

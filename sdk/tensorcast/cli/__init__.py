"""The command line. It reaches services only as processes (`up`), by the bus, and by the storage's socket."""

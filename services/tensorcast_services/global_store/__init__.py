"""The global store: which artifacts there are, who holds them, and which processes live.

``core`` decides, ``store`` remembers (DuckDB, the only durable truth of the control plane), ``service`` joins both to
the bus. Never on the way of a tensor's bytes.
"""

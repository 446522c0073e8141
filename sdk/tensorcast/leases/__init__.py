"""Caller leases: what a process registers (registering), holds (tenure, lease) and keeps alive (renewal)."""

"""The gateway: where callers without a storage of their own ask. Run as many as needed; they keep nothing."""

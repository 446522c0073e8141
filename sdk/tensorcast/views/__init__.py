"""Views: what was said (spec), what it means over a manifest (resolve, packed), and reading it (content, gather)."""

"""Drafts: what a put is made of, before the storage sees it. From tensors (`memory`) or from files (`files`)."""

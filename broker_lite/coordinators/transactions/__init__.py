"""Transactional ids, and how their transactions end."""

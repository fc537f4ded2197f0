"""The transaction coordinator: transactional ids, and the ends of their transactions."""

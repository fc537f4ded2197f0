"""Work nodes, which process records."""

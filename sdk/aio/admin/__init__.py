"""The asyncio admin client."""

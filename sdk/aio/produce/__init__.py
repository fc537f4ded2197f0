"""The asyncio producer."""

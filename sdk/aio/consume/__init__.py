"""The asyncio consumer."""

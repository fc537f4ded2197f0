"""One module per subject of requests; each registers its handlers when it is imported."""

__all__: list[str] = []

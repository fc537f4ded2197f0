"""Word count: lines become words, words of one kind meet on one partition and are counted."""

from collections.abc import Iterator

from onceflow.processors import App, State

app = App("word-count", "localhost:9092")


@app.processor("lines")
def words(line: str) -> Iterator[str]:
    yield from line.lower().split()


@app.processor(words, to="word-counts", key=lambda word: word)
def count(word: str, seen: State[int]) -> str:
    seen.set(seen.get(0) + 1)
    return f"{word} {seen.get()}"

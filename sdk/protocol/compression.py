"""Compression codecs of record batches: gzip, snappy, lz4 and zstd, each loaded at first use.

It decides how bytes are framed for each codec (Kafka's framings, so that every client can read
them) and how much output a compressed block may produce. The bound is always enforced, so that a
small hostile block takes neither the memory nor the time of its full output.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType

from onceflow.sdk.errors import LocalProtocolError, RemoteProtocolError
from onceflow.sdk.protocol.primitives import Buffer

MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024
"""Default bound on the output of one compressed block."""

CHUNK_BYTES = 1024 * 1024
"""Size of the pieces that :func:`decompress_chunks` aims at."""


class Codec(enum.IntEnum):
    """Compression codecs by the number stored in a batch's attributes (`compression.type`)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_NAMES: dict[str, Codec] = {codec.name.lower(): codec for codec in Codec}
"""Codec by Kafka's configuration name (`none`, `gzip`, `snappy`, `lz4`, `zstd`)."""


class CodecUnavailableError(LocalProtocolError):
    """The library of a codec is not installed, or the codec number is unknown."""


class DecompressionError(RemoteProtocolError):
    """Compressed data is damaged."""


class DecompressedTooLargeError(DecompressionError):
    """Compressed data unpacks to more than the allowed number of bytes."""


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Compress one block.

    Args:
        codec: Number of the codec.
        data: Bytes to compress.
        level: The codec's own level, or None for Kafka's default (KIP-390). Snappy has none.

    Returns:
        The compressed block in the framing that Kafka uses.

    Raises:
        CodecUnavailableError: Unknown codec, or its library is missing.
    """
    if codec == Codec.NONE:
        return data
    if codec == Codec.GZIP:
        stream = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
        return stream.compress(data) + stream.flush()
    if codec == Codec.SNAPPY:
        return _snappy_compress(data)
    if codec == Codec.LZ4:
        # Independent blocks: Kafka's reader refuses linked ones (KIP-57). Kafka's default level
        # takes the fast compressor, which is level 1 here.
        frame = _cramjam(codec).lz4.Compressor(
            level=1 if level is None else level, content_checksum=False, block_linked=False
        )
        frame.compress(bytes(data))  # The library takes nothing else here.
        return memoryview(frame.finish())
    if codec == Codec.ZSTD:
        return memoryview(_cramjam(codec).zstd.compress(data, level=3 if level is None else level))
    raise _unknown_codec(codec)


def decompress(codec: int, data: Buffer, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
    """Decompress one whole block.

    Args:
        codec: Number of the codec.
        data: The compressed block.
        max_bytes: Bound on the output; no more memory than this is used for it.

    Raises:
        DecompressedTooLargeError: The output would exceed `max_bytes`.
        DecompressionError: The block is damaged.
        CodecUnavailableError: Unknown codec, or its library is missing.
    """
    if codec == Codec.NONE:
        return data
    decompressor = _DECOMPRESSORS.get(codec)
    if decompressor is None:
        raise _unknown_codec(codec)
    return decompressor(data, max_bytes)


def decompress_chunks(
    codec: int, data: Buffer, *, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[Buffer]:
    """Decompress one block piece by piece, for a reader that need not hold all of it.

    gzip, framed snappy and Kafka's lz4 (independent blocks) are unpacked in pieces; so is zstd
    where a streaming library is present (Python 3.14's own, or `zstandard`). Elsewhere the
    block is unpacked at once, within `max_bytes`.

    Args:
        codec: Number of the codec.
        data: The compressed block.
        max_bytes: Bound on the output that may be held at once. Output that is really unpacked
            in pieces is not bounded in total.

    Raises:
        DecompressedTooLargeError: The output cannot be unpacked in pieces and is too large.
        DecompressionError: The block is damaged.
        CodecUnavailableError: Unknown codec, or its library is missing.
    """
    view = memoryview(data)
    if codec == Codec.NONE:
        return (view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES))
    if codec == Codec.GZIP:
        return _gzip_chunks(view)
    if codec == Codec.SNAPPY and _is_xerial(view):
        return _xerial_chunks(view, max_bytes)
    if codec == Codec.LZ4 and _lz4_is_divisible(view):
        return _lz4_chunks(view, max_bytes)
    if codec == Codec.ZSTD and (stream := _zstd_stream()) is not None:
        return stream(view)
    return iter((decompress(codec, data, max_bytes=max_bytes),))


def require_codec(codec: int) -> None:
    """Check that a codec can be used in this process.

    Raises:
        CodecUnavailableError: Unknown codec, or its library is missing; the message names both.
    """
    if not 0 <= codec <= Codec.ZSTD:
        raise _unknown_codec(codec)
    if codec > Codec.GZIP:
        _cramjam(codec)


def _unknown_codec(codec: int) -> CodecUnavailableError:
    return CodecUnavailableError(f"compression codec {codec} is unknown; Kafka defines 0 to 4")


def _cramjam(codec: int) -> ModuleType:
    try:
        return import_module("cramjam")
    except ImportError as error:
        name = Codec(codec).name.lower()
        raise CodecUnavailableError(
            f"compression codec {name} needs the package 'cramjam'; install it"
        ) from error


def _damaged(codec: Codec, error: Exception) -> DecompressionError:
    return DecompressionError(f"damaged {codec.name.lower()} block: {error}")


def _bounded(codec: Codec, data: Buffer, bound: int | None, max_bytes: int) -> memoryview:
    """Decompress with cramjam when `bound` proves the size, else into a buffer of the limit."""
    library = _cramjam(codec)
    module = library.zstd if codec == Codec.ZSTD else library.lz4
    try:
        if bound is not None and bound <= max_bytes:
            return memoryview(module.decompress(data))
        output = bytearray(max_bytes)
        return memoryview(output)[: module.decompress_into(data, output)]
    except (library.DecompressionError, OSError, ValueError) as error:
        # The library's only sign of a full output buffer is this sentence of Rust's library.
        if "whole buffer" in str(error):
            raise DecompressedTooLargeError(
                f"{codec.name.lower()} block unpacks to more than {max_bytes} bytes"
            ) from None
        raise _damaged(codec, error) from None


# gzip ---------------------------------------------------------------------------------------

_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"


def _gzip_chunks(data: memoryview, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Unpack every member of a gzip block in pieces of at most `chunk_bytes`."""
    pending: Buffer = data
    while True:
        member = zlib.decompressobj(_GZIP_WINDOW)
        while not member.eof:
            try:
                chunk = member.decompress(pending, chunk_bytes)
            except zlib.error as error:
                raise DecompressionError(f"damaged gzip block: {error}") from None
            pending = member.unconsumed_tail
            if chunk:
                yield chunk
            elif not pending and not member.eof:
                raise DecompressionError("damaged gzip block: it ends too early")
        pending = member.unused_data
        if not pending.startswith(_GZIP_MAGIC):
            return  # Java's reader passes over whatever else follows, and so must we.


def _gzip_decompress(data: Buffer, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    for chunk in _gzip_chunks(memoryview(data), min(max_bytes + 1, CHUNK_BYTES)):
        size += len(chunk)
        if size > max_bytes:
            raise DecompressedTooLargeError(f"gzip block unpacks to more than {max_bytes} bytes")
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


# snappy -------------------------------------------------------------------------------------

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024


def _is_xerial(data: memoryview) -> bool:
    return len(data) >= len(_XERIAL_HEADER) and data[:8] == _XERIAL_MAGIC


def _snappy_compress(data: Buffer) -> bytes:
    """Compress in the framing of the Java library (blocks of 32 KiB), which all clients read."""
    compress_raw = _cramjam(Codec.SNAPPY).snappy.compress_raw
    view = memoryview(data)
    parts: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = memoryview(compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(struct.pack(">i", len(block)))
        parts.append(block)
    return b"".join(parts)


def _snappy_block(data: memoryview, max_bytes: int) -> Buffer:
    """Decompress one raw snappy block, whose first bytes state its size."""
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    else:
        raise DecompressionError("damaged snappy block: no valid size at its start")
    # The densest element turns 3 bytes into 64, so a larger size cannot be true.
    if size > 22 * len(data) + 64:
        raise DecompressionError("damaged snappy block: its size cannot be true")
    if size > max_bytes:
        raise DecompressedTooLargeError(f"snappy block unpacks to more than {max_bytes} bytes")
    library = _cramjam(Codec.SNAPPY)
    try:
        return memoryview(library.snappy.decompress_raw(data))
    except (library.DecompressionError, OSError, ValueError) as error:
        raise _damaged(Codec.SNAPPY, error) from None


def _xerial_chunks(data: memoryview, max_bytes: int) -> Iterator[Buffer]:
    position, end = len(_XERIAL_HEADER), len(data)
    while position < end:
        if end - position < 4:
            raise DecompressionError("damaged snappy block: it ends too early")
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
        if not 0 < size <= end - position:
            raise DecompressionError("damaged snappy block: a length is out of range")
        yield _snappy_block(data[position : position + size], max_bytes)
        position += size


def _snappy_decompress(data: Buffer, max_bytes: int) -> Buffer:
    view = memoryview(data)
    if not _is_xerial(view):
        return _snappy_block(view, max_bytes)
    chunks: list[Buffer] = []
    size = 0
    for chunk in _xerial_chunks(view, max_bytes):
        size += len(chunk)
        if size > max_bytes:
            raise DecompressedTooLargeError(f"snappy block unpacks to more than {max_bytes} bytes")
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


# lz4 ----------------------------------------------------------------------------------------

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_INDEPENDENT, _LZ4_BLOCK_CHECKSUM = 0x20, 0x10
_LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM, _LZ4_DICTIONARY = 0x08, 0x04, 0x01


def _lz4_is_divisible(data: memoryview) -> bool:
    """Whether each block of the frame can be unpacked alone, under the frame's own header."""
    if len(data) < 7 or data[:4] != _LZ4_MAGIC:
        return False
    flags = data[4]
    whole_frame = _LZ4_CONTENT_SIZE | _LZ4_CONTENT_CHECKSUM | _LZ4_DICTIONARY
    return bool(flags & _LZ4_INDEPENDENT) and not flags & whole_frame


def _lz4_blocks(data: memoryview) -> Iterator[tuple[int, int, int]]:
    """Positions of an lz4 frame's blocks: (start, end, most bytes that it can unpack to).

    The last entry is the frame's end, with nothing to unpack. Bytes after it are ignored, as
    Java's reader does.
    """
    flags, descriptor = data[4], data[5]
    largest = 1 << (8 + 2 * ((descriptor >> 4) & 7))
    checksum = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    position = 7 + (8 if flags & _LZ4_CONTENT_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)
    while True:
        if len(data) - position < 4:
            raise DecompressionError("damaged lz4 block: it ends too early")
        size = int.from_bytes(data[position : position + 4], "little")
        if size == 0:
            yield position, position + 4 + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0), 0
            return
        size &= 0x7FFFFFFF
        end = position + 4 + size + checksum
        if end > len(data):
            raise DecompressionError("damaged lz4 block: it ends too early")
        yield position, end, min(largest, 255 * size + 64)
        position = end


def _lz4_chunks(data: memoryview, max_bytes: int) -> Iterator[Buffer]:
    header = bytes(data[:7])
    for start, end, bound in _lz4_blocks(data):
        if bound:
            frame = b"".join((header, data[start:end], b"\x00\x00\x00\x00"))
            yield _bounded(Codec.LZ4, frame, bound, max_bytes)


def _lz4_decompress(data: Buffer, max_bytes: int) -> Buffer:
    view = memoryview(data)
    if len(view) < 7 or view[:4] != _LZ4_MAGIC:
        raise DecompressionError("damaged lz4 block: it does not start with a frame")
    bound = frame_end = 0
    for _, end, most in _lz4_blocks(view):
        bound += most
        frame_end = end
    return _bounded(Codec.LZ4, view[:frame_end], bound, max_bytes)


# zstd ---------------------------------------------------------------------------------------

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50
_ZSTD_BLOCK_BYTES = 128 * 1024
_ZSTD_DICTIONARY_BYTES = (0, 1, 2, 4)
_ZSTD_CONTENT_BYTES = (0, 2, 4, 8)


def _zstd_bound(data: memoryview, max_bytes: int) -> int | None:
    """Most bytes that the frames can unpack to, read from the block headers alone.

    Returns:
        A bound, exact enough to compare with `max_bytes` (the walk stops beyond it), or None if
        the headers make no sense; the library then says what is wrong.
    """
    position = bound = 0
    while position < len(data):
        if len(data) - position < 8:
            return None
        magic = int.from_bytes(data[position : position + 4], "little")
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
            continue
        if magic != _ZSTD_MAGIC:
            return None
        descriptor = data[position + 4]
        single_segment = descriptor & 0x20
        content_bytes = _ZSTD_CONTENT_BYTES[descriptor >> 6] or (1 if single_segment else 0)
        position += 5 + (0 if single_segment else 1)
        position += _ZSTD_DICTIONARY_BYTES[descriptor & 3] + content_bytes
        last = 0
        while not last:
            block = int.from_bytes(data[position : position + 3], "little")
            position += 3
            last, kind, size = block & 1, (block >> 1) & 3, block >> 3
            if position > len(data) or kind == 3:
                return None
            bound += _ZSTD_BLOCK_BYTES if kind == 2 else size
            position += 1 if kind == 1 else size
            if bound > max_bytes:
                return bound
        position += 4 if descriptor & 0x04 else 0
    return bound


def _zstd_decompress(data: Buffer, max_bytes: int) -> Buffer:
    view = memoryview(data)
    return _bounded(Codec.ZSTD, view, _zstd_bound(view, max_bytes), max_bytes)


def _zstd_stream() -> Callable[[memoryview], Iterator[bytes]] | None:
    """The streaming zstd reader of this process, if there is one."""
    try:
        library = import_module("compression.zstd")
        return lambda data: _zstd_stdlib_chunks(library, data)
    except ImportError:
        pass
    try:
        package = import_module("zstandard")
    except ImportError:
        return None
    return lambda data: _zstandard_chunks(package, data)


def _zstd_stdlib_chunks(library: ModuleType, data: memoryview) -> Iterator[bytes]:
    pending: Buffer = data
    try:
        while pending:
            frame = library.ZstdDecompressor()
            while not frame.eof:
                chunk = frame.decompress(pending, CHUNK_BYTES)
                pending = b""
                if chunk:
                    yield chunk
                elif frame.needs_input and not frame.eof:
                    raise DecompressionError("damaged zstd block: it ends too early")
            pending = frame.unused_data
    except library.ZstdError as error:
        raise DecompressionError(f"damaged zstd block: {error}") from None


def _zstandard_chunks(package: ModuleType, data: memoryview) -> Iterator[bytes]:
    reader = package.ZstdDecompressor().stream_reader(data, read_across_frames=True)
    try:
        while chunk := reader.read(CHUNK_BYTES):
            yield chunk
    except package.ZstdError as error:
        raise DecompressionError(f"damaged zstd block: {error}") from None


_DECOMPRESSORS: dict[int, Callable[[Buffer, int], Buffer]] = {
    Codec.GZIP: _gzip_decompress,
    Codec.SNAPPY: _snappy_decompress,
    Codec.LZ4: _lz4_decompress,
    Codec.ZSTD: _zstd_decompress,
}

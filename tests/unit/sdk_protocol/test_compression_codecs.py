"""Goal: every codec writes Kafka's framing, reads all framings in use, and bounds its output.

Method: blocks from other encoders (zlib's gzip, lz4's frames of every kind, raw and framed snappy,
several zstd frames) are unpacked at once and in pieces; bombs and damage must raise our errors.
"""

from __future__ import annotations

import gzip
import sys

import cramjam
import lz4.frame
import pytest

from onceflow.sdk.protocol import compression
from onceflow.sdk.protocol.compression import (
    CODEC_NAMES,
    Codec,
    CodecUnavailableError,
    DecompressedTooLargeError,
    DecompressionError,
    compress,
    decompress,
    decompress_chunks,
    require_codec,
)

TEXT = b"".join(b"line %d of the text, " % i for i in range(20_000))
REAL_CODECS = list(Codec)[1:]


def in_pieces(codec: int, data: bytes, max_bytes: int = 1 << 30) -> bytes:
    return b"".join(decompress_chunks(codec, data, max_bytes=max_bytes))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"x", TEXT, bytes(300_000)], ids=["short", "text", "zeros"])
def test_what_was_compressed_comes_back(codec: Codec, data: bytes) -> None:
    for given in (data, bytearray(data), memoryview(b"__" + data)[2:]):
        packed = bytes(compress(codec, given))
        assert bytes(decompress(codec, packed)) == data
        assert in_pieces(codec, packed) == data


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_level_can_be_chosen(codec: Codec) -> None:
    fast, small = compress(codec, TEXT, 1), compress(codec, TEXT, 9)
    assert len(small) < len(fast)
    assert bytes(decompress(codec, small)) == TEXT


def test_gzip_of_several_members_is_read() -> None:
    packed = gzip.compress(TEXT) + gzip.compress(b"more")
    assert decompress(Codec.GZIP, packed) == TEXT + b"more"
    assert in_pieces(Codec.GZIP, packed) == TEXT + b"more"


def test_snappy_is_written_framed_and_read_in_both_framings() -> None:
    assert bytes(compress(Codec.SNAPPY, TEXT)).startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01")
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    assert bytes(decompress(Codec.SNAPPY, raw)) == TEXT
    assert in_pieces(Codec.SNAPPY, raw) == TEXT


def test_lz4_is_written_in_independent_blocks_as_kafka_needs_it() -> None:
    packed = bytes(compress(Codec.LZ4, TEXT))
    assert lz4.frame.get_frame_info(packed)["block_linked"] is False
    assert lz4.frame.decompress(packed) == TEXT


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("size", [True, False])
@pytest.mark.parametrize("block", [4, 5, 6, 7])
def test_every_kind_of_lz4_frame_is_read(
    linked: bool, checksum: bool, size: bool, block: int
) -> None:
    packed = lz4.frame.compress(
        TEXT,
        block_linked=linked,
        content_checksum=checksum,
        block_checksum=checksum,
        store_size=size,
        block_size=block,
    )
    assert bytes(decompress(Codec.LZ4, packed)) == TEXT
    assert in_pieces(Codec.LZ4, packed) == TEXT


def test_several_zstd_frames_are_read() -> None:
    packed = bytes(cramjam.zstd.compress(TEXT)) + bytes(cramjam.zstd.compress(b"more"))
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    assert bytes(decompress(Codec.ZSTD, packed)) == TEXT + b"more"
    assert bytes(decompress(Codec.ZSTD, skippable + packed)) == TEXT + b"more"


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_output_is_bounded_exactly(codec: Codec) -> None:
    packed = bytes(compress(codec, TEXT))
    assert bytes(decompress(codec, packed, max_bytes=len(TEXT))) == TEXT
    with pytest.raises(DecompressedTooLargeError):
        decompress(codec, packed, max_bytes=len(TEXT) - 1)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_a_bomb_is_refused_before_it_is_unpacked(codec: Codec) -> None:
    packed = bytes(compress(codec, bytes(1 << 24)))
    with pytest.raises(DecompressedTooLargeError):
        decompress(codec, packed, max_bytes=1 << 20)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_pieces_are_no_larger_than_promised(codec: Codec) -> None:
    packed = bytes(compress(codec, bytes(1 << 24)))
    try:
        sizes = [len(piece) for piece in decompress_chunks(codec, packed, max_bytes=1 << 20)]
    except DecompressedTooLargeError:
        assert codec is Codec.ZSTD  # Without a library that streams.
    else:
        assert max(sizes) <= 1 << 20
        assert sum(sizes) == 1 << 24


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_every_cut_is_noticed(codec: Codec) -> None:
    packed = bytes(compress(codec, TEXT[:3000]))
    for end in range(len(packed)):
        if codec is Codec.SNAPPY and end == 16:
            continue  # The framing's header alone is a whole stream of no blocks.
        with pytest.raises(DecompressionError):
            decompress(codec, packed[:end])


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_bytes_behind_the_block_are_passed_over_where_java_does(codec: Codec) -> None:
    packed = bytes(compress(codec, TEXT)) + b"\x07behind"
    assert bytes(decompress(codec, packed)) == TEXT
    assert in_pieces(codec, packed) == TEXT


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.ZSTD])
def test_bytes_behind_the_block_are_damage_elsewhere(codec: Codec) -> None:
    with pytest.raises(DecompressionError):
        decompress(codec, bytes(compress(codec, TEXT)) + b"\x07behind")


def test_a_snappy_size_that_cannot_be_true_is_refused_without_allocating() -> None:
    for size in (b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff\xff", b"\xff" * 20):
        with pytest.raises(DecompressionError):
            decompress(Codec.SNAPPY, size + b"\x00" * 10)


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_an_unknown_codec_is_named(codec: int) -> None:
    for call in (compress, decompress):
        with pytest.raises(CodecUnavailableError, match=f"codec {codec} is unknown"):
            call(codec, b"x")
    with pytest.raises(CodecUnavailableError, match="is unknown"):
        require_codec(codec)


@pytest.mark.parametrize("name", ["snappy", "lz4", "zstd"])
def test_a_missing_library_is_named_with_its_codec(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = CODEC_NAMES[name]
    packed = bytes(compress(codec, b"text"))
    monkeypatch.setitem(sys.modules, "cramjam", None)
    for call in (
        lambda: require_codec(codec),
        lambda: compress(codec, b"x"),
        lambda: decompress(codec, packed),
    ):
        with pytest.raises(CodecUnavailableError, match=f"{name} needs the package 'cramjam'"):
            call()
    require_codec(Codec.GZIP)


def test_the_streaming_zstd_library_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    packed = bytes(compress(Codec.ZSTD, TEXT))
    assert in_pieces(Codec.ZSTD, packed) == TEXT
    with pytest.raises(DecompressedTooLargeError):
        in_pieces(Codec.ZSTD, packed, max_bytes=1000)


def test_zstandard_reads_in_pieces_where_it_is_installed() -> None:
    package = pytest.importorskip("zstandard")
    packed = bytes(compress(Codec.ZSTD, bytes(5 << 20)))
    pieces = [len(piece) for piece in compression._zstandard_chunks(package, memoryview(packed))]
    assert sum(pieces) == 5 << 20
    assert max(pieces) <= compression.CHUNK_BYTES
    with pytest.raises(DecompressionError, match="zstd"):
        list(compression._zstandard_chunks(package, memoryview(b"garbage that is no frame")))

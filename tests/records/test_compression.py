import gzip
import struct
import subprocess
import sys
from collections.abc import Callable

import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from afterlog.base.errors import InvalidBatch, UnsupportedCodec
from afterlog.records.compression import CODECS, codec_id, compress, decompress
from tests.campaigns import WHOLE
from tests.log import kafka_python

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
LARGE = b"".join(b"%d happy ducks; " % number for number in range(20_000))
KAFKA_DECODERS = {
    GZIP: kafka_python.codec.gzip_decode,
    SNAPPY: kafka_python.codec.snappy_decode,
    LZ4: kafka_python.codec.lz4_decode,
    ZSTD: kafka_python.codec.zstd_decode,
}
KAFKA_ENCODERS = {
    GZIP: kafka_python.codec.gzip_encode,
    SNAPPY: kafka_python.codec.snappy_encode,
    LZ4: kafka_python.codec.lz4_encode,
    ZSTD: kafka_python.codec.zstd_encode,
}

every_codec = pytest.mark.parametrize("codec", range(5))
every_real_codec = pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])


@every_codec
@given(st.one_of(st.binary(max_size=200), st.binary(min_size=1, max_size=50).map(lambda part: part * 3_000)))
def test_round_trip(codec: int, data: bytes) -> None:
    assert data == decompress(codec, compress(codec, data), len(data))


@every_codec
def test_the_limit_is_exact(codec: int) -> None:
    packed = compress(codec, LARGE)
    assert decompress(codec, packed, len(LARGE)) == LARGE
    with pytest.raises(InvalidBatch):
        decompress(codec, packed, len(LARGE) - 1)
    with pytest.raises(InvalidBatch):
        decompress(codec, packed, 0)


@every_real_codec
@pytest.mark.parametrize("data", [b"x", LARGE, bytes(range(256)) * 600])
def test_kafka_python_reads_ours_and_we_read_its(codec: int, data: bytes) -> None:
    assert data == KAFKA_DECODERS[codec](compress(codec, data))
    assert data == decompress(codec, KAFKA_ENCODERS[codec](data), len(data))


def test_lz4_blocks_are_independent_as_java_clients_want() -> None:
    flags = compress(LZ4, LARGE)[4]
    assert flags & 0x20


def test_lz4_stores_what_does_not_shrink() -> None:
    assert bytes.fromhex("04224D18 60 40 82  03000080 616263 00000000") == compress(LZ4, b"abc")


def test_snappy_is_framed_as_java_clients_want() -> None:
    packed = compress(SNAPPY, LARGE)
    assert b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) == packed[:16]


@pytest.mark.parametrize("data", [b"", b"x", LARGE])
def test_raw_snappy_is_read(data: bytes) -> None:
    assert data == decompress(SNAPPY, snappy.compress(data), len(data))


def test_snappy_with_little_endian_version_is_read() -> None:
    packed = compress(SNAPPY, LARGE)
    assert decompress(SNAPPY, packed[:8] + struct.pack("<ii", 1, 1) + packed[16:], len(LARGE)) == LARGE


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_several_members_or_frames(codec: int) -> None:
    assert decompress(codec, compress(codec, LARGE) + compress(codec, b"tail"), len(LARGE) + 4) == LARGE + b"tail"


@pytest.mark.parametrize("with_size", [True, False])
def test_zstd_with_and_without_content_size(with_size: bool) -> None:
    packed = zstandard.ZstdCompressor(write_content_size=with_size).compress(LARGE)
    assert decompress(ZSTD, packed, len(LARGE)) == LARGE


@every_real_codec
@given(data=st.data())
def test_damaged_data_is_refused_or_read_but_never_crashes(codec: int, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, LARGE[:3_000]))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(packed)))
    try:
        assert len(decompress(codec, packed[:end], 10_000)) <= 10_000
    except InvalidBatch:
        pass


@every_real_codec
@pytest.mark.parametrize(
    "garbage", [b"\x01\x02\x03garbage", b"\xff" * 40, b"\x82SNAPPY\0" + b"\0" * 8 + b"\x7f\xff\xff\xff"]
)
def test_garbage(codec: int, garbage: bytes) -> None:
    with pytest.raises(InvalidBatch):
        decompress(codec, garbage, 1 << 20)


@pytest.mark.parametrize("codec", [5, 6, 7])
@pytest.mark.parametrize("call", [lambda codec: compress(codec, b"x"), lambda codec: decompress(codec, b"x", 9)])
def test_numbers_that_kafka_has_not(codec: int, call: Callable[[int], bytes]) -> None:
    with pytest.raises(UnsupportedCodec):
        call(codec)


def test_names() -> None:
    assert [0, 1, 2, 3, 4] == [codec_id(name) for name in CODECS]
    with pytest.raises(UnsupportedCodec):
        codec_id("brotli")  # type: ignore[arg-type]


BOMB_MIB = 256 if WHOLE else 64
BOMBS = """
import resource, struct, sys, zlib
import cramjam
from afterlog.base.errors import InvalidBatch
from afterlog.records.compression import compress, decompress

MIB = int(sys.argv[1])
million = bytes(1 << 20)
block = bytes(cramjam.snappy.compress_raw(million))
lz4_block = bytes(cramjam.lz4.compress_block(bytes(65_536), store_size=False))
stream = cramjam.zstd.Compressor(19)
for _ in range(MIB):
    stream.compress(million)
packer = zlib.compressobj(9, zlib.DEFLATED, 31)
bombs = {
    1: b"".join(packer.compress(million) for _ in range(MIB)) + packer.flush(),
    2: compress(2, b"")[:16] + MIB * (struct.pack(">I", len(block)) + block),
    3: compress(3, b"")[:7] + 16 * MIB * (struct.pack("<I", len(lz4_block)) + lz4_block) + bytes(4),
    4: bytes(stream.finish()),
}
raw_snappy = b"\\x80\\x80\\x80\\x80\\x0f" + block
for codec, bomb in [*bombs.items(), (2, raw_snappy)]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        decompress(codec, bomb, 4 << 20)
        sys.exit(f"codec {codec}: taken")
    except InvalidBatch:
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        grown >>= 10 if sys.platform == "darwin" else 0  # bytes there
        print(codec, len(bomb), grown)
        if grown > 16 << 10:
            sys.exit(f"codec {codec}: {grown} KiB")
"""


def test_a_bomb_costs_its_limit_and_no_more() -> None:
    """BOMB_MIB in each, the limit 4 MiB: the process may grow by 16 MiB at most (a zstd window is 8)."""
    run = subprocess.run([sys.executable, "-c", BOMBS, str(BOMB_MIB)], capture_output=True, text=True, check=False)
    assert (0, "") == (run.returncode, run.stderr), run.stdout


def test_gzip_of_the_standard_library() -> None:
    assert decompress(GZIP, gzip.compress(LARGE), len(LARGE)) == LARGE

"""Frames and their fields: what is read is what was written, and damage is refused."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from tvmflow.agent import frames
from tvmflow.agent.frames import Code, FieldReader, Fields, Frame, FrameError, Kind, read_frame
from tvmflow.errors import AgentError

ROOT = Path(__file__).parents[2]


def read(content: bytes) -> Frame | None:
    return read_frame(io.BytesIO(content).read)


def test_frames_and_fields_are_read_as_they_were_written():
    fields = Fields().u32(1, 2**32 - 1).u64(2**64 - 1).f64(-1.5).text("Grüße").text("").raw(b"rest")
    frame = Frame(Kind.RUN, 7, fields.payload, 1234)
    found = read(frame.encoded())
    assert found == frame
    reader = FieldReader(found.payload)
    assert (reader.u32(), reader.u32(), reader.u64(), reader.f64()) == (
        1,
        2**32 - 1,
        2**64 - 1,
        -1.5,
    )
    assert (reader.text(), reader.text(), reader.rest()) == ("Grüße", "", b"rest")
    assert reader.rest() == b""


def test_the_numbers_are_those_of_the_agent():
    header = (ROOT / "native/agent/protocol.h").read_text()
    numbers = dict(re.findall(r"\bAGENT_(\w+) = (\w+(?: << \d+)?)(?=,| \})", header))
    values = {name: eval(text) for name, text in numbers.items() if text[0].isdigit()}
    kinds = {kind.name: kind.value for kind in Kind}
    codes = {code.name: code.value for code in Code}
    assert kinds.items() <= values.items()
    assert codes.items() <= values.items()
    rest = {name: value for name, value in values.items() if name not in kinds | codes}
    assert rest == {
        "VERSION": frames.VERSION,
        "FEATURES": 0,
        "PART": frames.PART,
        "ANSWER": frames.ANSWER,
        "ERROR": frames.ERROR,
        "HEADER_BYTES": len(Frame(0, 0, b"").encoded()),
        "MAX_PAYLOAD": frames.MOST_PAYLOAD_BYTES,
        "PART_BYTES": frames.PIECE_BYTES,
        "MAX_TEXT": frames.MOST_TEXT_BYTES,
        "MAX_ITEMS": frames.MOST_ITEMS,
        "DEFAULT_LIMIT_MS": 60_000,
        "MAX_LIMIT_MS": frames.MOST_LIMIT_MS,
    }


FRAME = Frame(Kind.PING, 3, b"payload").encoded()


def test_the_end_between_frames_is_no_damage():
    assert read(b"") is None


@pytest.mark.parametrize("count", [1, 4, 23, 24, len(FRAME) - 1])
def test_frames_that_are_cut_short_are_refused(count):
    with pytest.raises(FrameError, match=r"instead of a frame came|ended within a frame"):
        read(FRAME[:count])


@pytest.mark.parametrize("position", range(len(FRAME)))
def test_every_damaged_byte_is_noticed(position):
    damaged = bytearray(FRAME)
    damaged[position] ^= 0x10
    with pytest.raises(FrameError):
        read(bytes(damaged))


def test_what_another_program_prints_is_shown():
    with pytest.raises(FrameError, match="instead of a frame came b'Welcome to this boa"):
        read(b"Welcome to this board, which is nice\n")


def test_lengths_are_checked_before_memory_is_taken():
    content = bytearray(FRAME)
    content[16:20] = (frames.MOST_PAYLOAD_BYTES + 1).to_bytes(4, "little")

    def take(count: int) -> bytes:
        assert count == 24
        return bytes(content[:24])

    with pytest.raises(FrameError, match="a frame has 4194305 bytes, more than 4194304"):
        read_frame(take)


@pytest.mark.parametrize(
    "take", [FieldReader.u32, FieldReader.u64, FieldReader.f64, FieldReader.text]
)
def test_fields_that_are_cut_short_are_refused(take):
    with pytest.raises(FrameError, match="are cut short"):
        take(FieldReader(b"\3\0\0"))
    with pytest.raises(FrameError, match="are cut short"):
        FieldReader(b"\3\0\0\0ab").text()


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda: Fields().u32(-1), "number -1 .* from 0 to 4294967295"),
        (lambda: Fields().u32(1 << 32), "number 4294967296"),
        (lambda: Fields().u64(1 << 64), "number 18446744073709551616"),
        (lambda: Fields().text("x" * 65537), "65537 bytes, .*at most 65536 bytes"),
        (lambda: Fields().text("a\0b"), "none of them zero"),
        (lambda: Frame(1, 1, bytes((4 << 20) + 1)).encoded(), "4194305 bytes .*at most 4194304"),
    ],
)
def test_values_that_do_not_fit_are_refused(write, reason):
    with pytest.raises(AgentError, match=reason) as refused:
        write()
    assert refused.value.code == Code.ARGUMENT

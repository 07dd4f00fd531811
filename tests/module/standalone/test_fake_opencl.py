"""The fake OpenCL driver detects the faults that it is for, and its memory is right."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np
import pytest
from support.cl_calls import ImageDescription
from support.fake_opencl import Fake, build_fake

RGBA, FLOAT, IMAGE_ARRAY = 0x10B5, 0x10DE, 0x10F3
SOURCE = b"""
__kernel void copy_f(__global const float* a, __global float* b) {}
kernel void __attribute__((reqd_work_group_size(4, 1, 1))) scale_i(
    __read_only image2d_array_t a, __write_only image2d_array_t b, float factor) {}
"""


def sizes(*values):
    return (c_size_t * len(values))(*values)


class Session:
    """A context, a queue and the objects created in them."""

    def __init__(self, fake):
        self.cl, self.code = fake, c_int32()
        platform, self.device = c_void_p(), c_void_p()
        assert fake.clGetPlatformIDs(1, byref(platform), None) == 0
        assert fake.clGetDeviceIDs(platform, c_uint64(0xFFFFFFFF), 1, byref(self.device), None) == 0
        self.context = self.made(
            fake.clCreateContext(None, 1, byref(self.device), None, None, self.at)
        )
        self.queue = self.new_queue(0)

    @property
    def at(self):
        return byref(self.code)

    def made(self, handle):
        return c_void_p(handle)

    def new_queue(self, properties):
        return self.made(
            self.cl.clCreateCommandQueue(self.context, self.device, c_uint64(properties), self.at)
        )

    def buffer(self, size):
        return self.made(
            self.cl.clCreateBuffer(self.context, c_uint64(1), c_size_t(size), None, self.at)
        )

    def image(self, width, height, layers):
        description = ImageDescription(IMAGE_ARRAY, width, height, 0, layers)
        image_format = (c_uint32 * 2)(RGBA, FLOAT)
        return self.made(
            self.cl.clCreateImage(
                self.context, c_uint64(1), image_format, byref(description), None, self.at
            )
        )

    def program(self, source=SOURCE):
        text = ctypes.c_char_p(source)
        program = self.made(
            self.cl.clCreateProgramWithSource(self.context, 1, byref(text), None, self.at)
        )
        return program, self.cl.clBuildProgram(program, 0, None, b"", None, None)

    def kernel(self, program, name):
        return self.made(self.cl.clCreateKernel(program, name, self.at))

    def set(self, kernel, index, value, size=8):
        return self.cl.clSetKernelArg(kernel, index, c_size_t(size), byref(value))

    def launch(self, kernel, global_size, local_size=None, queue=None):
        return self.cl.clEnqueueNDRangeKernel(
            queue or self.queue,
            kernel,
            len(global_size),
            None,
            sizes(*global_size),
            sizes(*local_size) if local_size else None,
            0,
            None,
            None,
        )

    def transfer(self, write, memory, array, blocking=True, offset=0, size=None):
        call = self.cl.clEnqueueWriteBuffer if write else self.cl.clEnqueueReadBuffer
        return call(
            self.queue,
            memory,
            c_uint32(blocking),
            c_size_t(offset),
            c_size_t(size or array.nbytes),
            array.ctypes.data_as(c_void_p),
            0,
            None,
            None,
        )

    def transfer_image(self, write, memory, array, origin, region, row_pitch=0, slice_pitch=0):
        call = self.cl.clEnqueueWriteImage if write else self.cl.clEnqueueReadImage
        return call(
            self.queue,
            memory,
            c_uint32(1),
            sizes(*origin),
            sizes(*region),
            c_size_t(row_pitch),
            c_size_t(slice_pitch),
            array.ctypes.data_as(c_void_p),
            0,
            None,
            None,
        )


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return Fake(build_fake(tmp_path_factory.mktemp("fake")))


@pytest.fixture
def session(library):
    library.fake_reset()
    library.set("EXTENSIONS", "cl_khr_command_buffer cl_qcom_recordable_queues")
    yield Session(library)
    library.fake_reset()
    for name in ("BINARIES", "BUILD", "EXTENSIONS", "MEMORY_BYTES", "IMAGE_WIDTH"):
        library.set(name, None)


def test_a_box_of_an_image_is_written_and_read_with_pitches(session):
    whole = np.arange(3 * 5 * 7 * 4, dtype=np.float32).reshape(3, 5, 7, 4)
    image = session.image(7, 5, 3)
    assert session.transfer_image(True, image, whole, (0, 0, 0), (7, 5, 3)) == 0
    part = np.full((2, 4, 6, 4), -1, np.float32)
    # Rows of 3 texels at a pitch of 6; layers of 2 rows at a pitch of 4.
    assert session.transfer_image(False, image, part, (2, 1, 1), (3, 2, 2), 96, 384) == 0
    np.testing.assert_array_equal(part[:, :2, :3], whole[1:3, 1:3, 2:5])
    assert (part[:, 2:] == -1).all()
    assert (part[:, :, 3:] == -1).all()
    assert not session.cl.violations
    assert session.transfer_image(False, image, part, (5, 0, 0), (3, 1, 1)) == -30
    assert "does not lie inside" in session.cl.violations


def test_commands_are_executed_when_somebody_waits(session):
    data, found = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    memory = session.buffer(64)
    assert session.transfer(True, memory, data, blocking=False) == 0
    data[3] = 77  # too early: the driver has not read it
    assert session.transfer(False, memory, found) == 0
    assert found[3] == 77


def test_kernels_do_what_they_are_called(session):
    program, built = session.program()
    assert built == 0
    kernel = session.kernel(program, b"scale_i")
    a, b = session.image(2, 2, 1), session.image(2, 2, 1)
    data, found = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    session.transfer_image(True, a, data, (0, 0, 0), (2, 2, 1))
    assert session.set(kernel, 0, a) == session.set(kernel, 1, b) == 0
    assert session.launch(kernel, (4,)) == -52  # the factor is missing
    assert session.set(kernel, 2, ctypes.c_float(0.5), 4) == 0
    assert session.launch(kernel, (4,), (4,)) == 0
    session.transfer_image(False, b, found, (0, 0, 0), (2, 2, 1))
    np.testing.assert_array_equal(found, data / 2)
    assert session.cl.violations.count("\n") == 1


def wrong_argument_index(s):
    return s.set(s.kernel(s.program()[0], b"copy_f"), 2, s.buffer(4)), -49


def image_for_a_buffer(s):
    return s.set(s.kernel(s.program()[0], b"copy_f"), 0, s.image(1, 1, 1)), -38


def released_twice(s):
    memory = s.buffer(4)
    s.cl.clReleaseMemObject(memory)
    return s.cl.clReleaseMemObject(memory), -38


def launched_with_memory_that_was_released(s):
    kernel, memory = s.kernel(s.program()[0], b"copy_f"), s.buffer(4)
    s.set(kernel, 0, memory)
    s.set(kernel, 1, memory)
    s.cl.clReleaseMemObject(memory)
    return s.launch(kernel, (1,)), -52


def group_that_does_not_divide(s):
    kernel, memory = s.kernel(s.program()[0], b"copy_f"), s.buffer(4)
    s.set(kernel, 0, memory)
    s.set(kernel, 1, memory)
    return s.launch(kernel, (6,), (4,)), -54


def read_behind_the_end(s):
    return s.transfer(False, s.buffer(8), np.zeros(4, np.uint8), offset=5), -30


@pytest.mark.parametrize(
    "mistake",
    [
        wrong_argument_index,
        image_for_a_buffer,
        released_twice,
        launched_with_memory_that_was_released,
        group_that_does_not_divide,
        read_behind_the_end,
    ],
)
def test_mistakes_are_noted(session, mistake):
    got, expected = mistake(session)
    assert got == expected
    assert session.cl.violations.count("\n") == 1


def test_the_call_that_was_asked_for_fails(session):
    session.cl.fake_fail(b"clCreateBuffer", c_uint64(2), -5, False)
    handles = [session.buffer(4) for _ in range(3)]
    assert [handle.value is None for handle in handles] == [False, True, False]
    assert session.cl.fake_failed() == b"clCreateBuffer"
    session.cl.fake_reset()
    session.cl.fake_fail(None, c_uint64(3), -5, True)
    assert [session.cl.clFinish(session.queue) for _ in range(5)] == [0, 0, -5, -5, -5]


def test_what_lives_is_counted_with_its_memory(library):
    before, text = library.fake_live(), library.live
    session = Session(library)
    memory = session.buffer(1000)
    used = library.fake_memory()
    assert library.fake_live() == before + 3
    library.clRetainMemObject(memory)
    library.clReleaseMemObject(memory)
    assert library.fake_memory() == used
    for release, handle in [
        (library.clReleaseMemObject, memory),
        (library.clReleaseCommandQueue, session.queue),
        (library.clReleaseContext, session.context),
    ]:
        assert release(handle) == 0
    assert (library.fake_memory(), library.live) == (used - 1000, text)


def test_limits_are_no_mistakes(session):
    session.cl.set("MEMORY_BYTES", str(session.cl.fake_memory() + 100))
    assert session.buffer(101).value is None
    assert session.code.value == -4
    session.cl.set("IMAGE_WIDTH", "16")
    assert session.image(17, 1, 1).value is None
    assert session.code.value == -40
    session.cl.set("BUILD", "fail")
    program, code = session.program()
    assert code == -11
    log = ctypes.create_string_buffer(200)
    session.cl.clGetProgramBuildInfo(program, session.device, 0x1183, c_size_t(200), log, None)
    assert b"error" in log.value
    assert not session.cl.violations


def test_a_binary_is_taken_back_by_the_same_driver_only(session):
    session.cl.set("BINARIES", "late")
    program, _ = session.program()
    size = c_size_t()
    session.cl.clGetProgramInfo(program, 0x1165, c_size_t(8), byref(size), None)
    binary = ctypes.create_string_buffer(size.value)
    at = c_void_p(ctypes.addressof(binary))
    session.cl.clGetProgramInfo(program, 0x1166, c_size_t(8), byref(at), None)

    def load():
        handle = session.cl.clCreateProgramWithBinary(
            session.context, 1, byref(session.device), byref(size), byref(at), None, session.at
        )
        return c_void_p(handle) if handle else None

    program = load()
    assert session.cl.clBuildProgram(program, 0, None, b"", None, None) == 0
    assert session.cl.fake_count(b"incomplete") == 1
    assert session.kernel(program, b"copy_f").value
    binary[40] = bytes([binary[40][0] ^ 1])
    assert load() is None
    assert session.code.value == -42
    assert not session.cl.violations


@pytest.mark.parametrize("extension", ["khr", "qcom"])
def test_launches_are_recorded_with_the_arguments_of_then(session, extension):
    kernel = session.kernel(session.program()[0], b"copy_f")
    a, b, c = (session.buffer(8) for _ in range(3))
    data, found = np.array([3, 4], np.float32), np.zeros(2, np.float32)
    session.transfer(True, a, data)
    session.set(kernel, 0, a)
    session.set(kernel, 1, b)
    cl, queue = session.cl, session.queue
    if extension == "khr":
        recording = session.made(cl.clCreateCommandBufferKHR(1, byref(queue), None, session.at))
        arguments = (recording, None, None, kernel, 1, None, sizes(2), None, 0, None, None, None)
        assert cl.clCommandNDRangeKernelKHR(*arguments) == 0
        assert cl.clFinalizeCommandBufferKHR(recording) == 0
    else:
        recordable = session.new_queue(1 << 30)
        recording = session.made(cl.clNewRecordingQCOM(recordable, session.at))
        assert session.launch(kernel, (2,), queue=recordable) == 0
        assert cl.clEndRecordingQCOM(recording) == 0
    session.set(kernel, 1, c)
    for _ in range(2):
        session.transfer(True, b, np.zeros(2, np.float32))
        if extension == "khr":
            assert cl.clEnqueueCommandBufferKHR(0, None, recording, 0, None, None) == 0
        else:
            none = (c_size_t(0), None)
            assert (
                cl.clEnqueueRecordingQCOM(
                    queue, recording, *none, *none, *none, *none, 0, None, None
                )
                == 0
            )
        session.transfer(False, b, found)
        np.testing.assert_array_equal(found, data)
    release = cl.clReleaseCommandBufferKHR if extension == "khr" else cl.clReleaseRecordingQCOM
    assert release(recording) == 0
    assert cl.fake_count(b"replays") == 2
    assert not cl.violations


def test_a_stub_does_nothing(session):
    memory, found = session.buffer(8), np.array([1, 2], np.float32)
    session.cl.set("STUB", "1")
    calls = session.cl.fake_count(None)
    assert session.transfer(False, memory, found) == 0
    assert session.launch(c_void_p(), (1,)) == 0
    session.cl.set("STUB", None)
    assert session.cl.fake_count(None) == calls
    np.testing.assert_array_equal(found, [1, 2])

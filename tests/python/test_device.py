"""Arrays in a device's memory, which is emulated, as frameworks hand them over: __cuda_array_interface__ and DLPack."""
import os
from pathlib import Path

import pytest
from ranks import JUDGE, NCCL, run

SIM = Path(os.environ["HEDDLE_BUILD"]) / "tests" / "device-sim"

DEVICE = JUDGE + """
import ctypes, os, threading
import numpy as np
os.environ["HEDDLE_MODULE_PATH"] = %r
import heddle

cuda = ctypes.CDLL(os.environ["HEDDLE_MODULE_PATH"] + "/libheddle_cuda.so")

def called(name, *given):
    assert getattr(cuda, name)(*given) == 0, name

class Array:
    '''A dense array on the device, filled and read in the order of a stream.'''
    def __init__(self, like, stream=0):
        self.shape, self.dtype, self.nbytes = like.shape, like.dtype, like.nbytes
        self.address, self.stream = ctypes.c_void_p(), ctypes.c_void_p(stream or None)
        called("cudaMalloc", ctypes.byref(self.address), ctypes.c_size_t(max(like.nbytes, 1)))
        self.kept = np.ascontiguousarray(like)
        called("cudaMemcpyAsync", self.address, ctypes.c_void_p(self.kept.ctypes.data), ctypes.c_size_t(self.nbytes), 1,
               self.stream)

    def get(self):
        whole = np.empty(self.shape, self.dtype)
        called("cudaMemcpyAsync", ctypes.c_void_p(whole.ctypes.data), self.address, ctypes.c_size_t(self.nbytes), 2,
               self.stream)
        called("cudaStreamSynchronize", self.stream)
        return whole

class ByInterface(Array):
    more = {}

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address.value, False), "version": 3,
                "strides": None, **self.more}

class Managed(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("number", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("offset", ctypes.c_uint64), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

class ByDLPack(Array):
    number, asked = 0, None

    def __dlpack_device__(self):
        return 2, self.number

    def __dlpack__(self, stream):
        self.asked = stream
        self.extents = (ctypes.c_int64 * len(self.shape))(*self.shape)
        code = {"f": 2, "i": 0, "u": 1, "b": 6}[self.dtype.kind]
        self.managed = Managed(self.address.value - 64, 2, self.number, len(self.shape), code,
                               8 * self.dtype.itemsize, 1, ctypes.addressof(self.extents), None, 64, None, None)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)

def part(whole, axis, rank, size):
    cut = blocks(whole.shape[axis], size)
    return np.ascontiguousarray(whole[(slice(None),) * axis + (slice(cut[rank], cut[rank + 1]),)])
""" % str(SIM)

pytestmark = pytest.mark.skipif(not (SIM / "libheddle_cuda.so").exists(), reason="no emulated device on this processor")


def test_arrays_that_say_where_they_are(tmp_path):
    run(tmp_path, DEVICE + """
with heddle.Comm.open() as comm:
    n, rank = comm.size, comm.rank
    line = heddle.Line(f"f32[t=7 s=5 c=3] on [sp={n}]: t@sp -> s@sp as c,s,t")
    refused(heddle.UnsupportedError, "device", comm.reshard, line, space="device")
    refused(heddle.ArgumentError, "wanted auto or peer or nccl or host", comm.attach_device, "cuda", "pigeon")
    assert comm.device == -1
    comm.attach_device("cuda:0")
    assert comm.device == 0
    stream = ctypes.c_void_p()
    called("cudaStreamCreateWithFlags", ctypes.byref(stream), 1)
    for dtype, name in [("f32", "float32"), ("bf16", "uint16"), ("i64", "int64"), ("bool", "bool"), ("u8", "uint8")]:
        whole = np.random.default_rng(7).integers(0, 2 if name == "bool" else 100, (7, 5, 3)).astype(name)
        plan = comm.reshard(line, dtype, space="device")
        assert plan is comm.reshard(line, dtype, "device") is not comm.reshard(line, dtype)
        wanted = part(whole, 1, rank, n).transpose(2, 1, 0)
        for kind in (ByInterface, ByDLPack):
            for on in (0, stream.value):
                if on:
                    cuda.device_sim_hold(stream)  # what fills src has not happened yet when the plan is called
                    threading.Timer(0.05, cuda.device_sim_release).start()
                src, out = kind(part(whole, 0, rank, n), on), kind(np.zeros(wanted.shape, name), on)
                assert plan(src, out, stream=on) is out
                assert np.array_equal(out.get(), wanted), (dtype, kind, on)
                assert kind is ByInterface or (src.asked, out.asked) == (on or 1, on or 1)
        back = plan.adjoint() if dtype == "f32" else None
        if back is not None:
            again = ByInterface(np.zeros(back.dst_shape, name))
            assert np.array_equal(back(ByInterface(wanted), again).get(), part(whole, 0, rank, n))

    plan = comm.reshard(line, space="device")
    mine = part(np.ones((7, 5, 3), np.float32), 0, rank, n)
    src, out = ByInterface(mine), ByInterface(np.zeros(plan.dst_shape, np.float32))
    refused(heddle.ArgumentError, "out is a NoneType", plan, src)
    refused(heddle.ArgumentError, "src lies on the device (1, 0) of DLPack", plan, mine, out)
    refused(heddle.ArgumentError, "is of float64, wanted float32", plan, ByInterface(mine.astype(np.float64)), out)
    refused(heddle.ArgumentError, "out has the shape", plan, src, ByDLPack(mine))
    for more, words in [({"stream": 2}, "stream 0x2, the call is for 0x0"), ({"strides": (999, 12, 4)}, "dense array"),
                        ({"data": (out.address.value, True)}, "read-only")]:
        out.more = more
        refused(heddle.ArgumentError, words, plan, src, out)
    out.more = {"stream": 1, "strides": tuple(np.empty(out.shape, np.float32).strides)}
    assert plan(src, out).get().sum() == out.shape[0] * out.shape[1] * 7
    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 64)]

    handle, at = Handle(), [0] * n  # as a framework does: each rank has mapped the others' pieces
    own, piece = ByInterface(np.zeros(out.shape, np.float32)), ByInterface(np.zeros(1024, np.float32))
    own.address = piece.address
    called("cudaIpcGetMemHandle", ctypes.byref(handle), piece.address)
    for peer, theirs in enumerate(comm.allgather(bytes(handle))):
        there = ctypes.c_void_p(piece.address.value)
        if peer != rank:
            called("cudaIpcOpenMemHandle", ctypes.byref(there), Handle.from_buffer_copy(theirs), 1)
        at[peer] = there.value
    refused(heddle.ArgumentError, "3 addresses, wanted one of each of 2 ranks", comm.lend_peers, at + [0], piece.nbytes)
    comm.lend_peers(at, piece.nbytes)
    assert plan(src, own).get().sum() == out.shape[0] * out.shape[1] * 7
    assert "at its place in the peers' memory" in plan.info().why, plan.info().why

    elsewhere = ByDLPack(mine)
    elsewhere.number = 1
    refused(heddle.ArgumentError, "device (2, 1) of DLPack, this rank's is (2, 0)", plan, elsewhere, out)
print("ok")
""", 2)


def test_a_communicator_of_nccl_is_borrowed(tmp_path):
    run(tmp_path, DEVICE + NCCL + """
with heddle.Comm.open() as launched:
    refused(heddle.ArgumentError, "borrowed is NULL", heddle.Comm.from_nccl, 0)
    borrowed = lender(launched)
    with heddle.Comm.from_nccl(borrowed, mesh="[uly=2]", deadline_s=20) as comm:
        assert (comm.rank, comm.size, comm.device) == (launched.rank, 2, launched.rank), comm
        assert "wire nccl (as asked for)" in comm.describe(), comm
        whole = np.arange(35, dtype=np.float32).reshape(7, 5)
        plan = comm.reshard("f32[t=7 s=5] on [uly=2]: t@uly -> s@uly", space="device")
        src = ByInterface(part(whole, 0, comm.rank, 2))
        out = ByInterface(np.zeros(plan.dst_shape, np.float32))
        assert np.array_equal(plan(src, out).get(), part(whole, 1, comm.rank, 2))
        refused(heddle.ArgumentError, "the communicator has a device: cuda:", comm.attach_device)
    refused(heddle.ArgumentError, "the mesh [sp=3] has 3 ranks, the communicator 2", heddle.Comm.from_nccl, borrowed,
            mesh="[sp=3]", deadline_s=20)
    launched.barrier()
    assert nccl.ncclCommDestroy(ctypes.c_void_p(borrowed)) == 0
print("ok")
""", 2)


def test_what_dlpack_says_is_read_as_numpy_writes_it():
    numpy = pytest.importorskip("numpy")
    from heddle.device_array import device_array

    class Elsewhere:
        def __init__(self, array):
            self.array = array

        def __dlpack_device__(self):
            return 2, 3

        def __dlpack__(self, stream):
            assert stream == 77
            return self.array.__dlpack__()

    whole = numpy.arange(120, dtype=numpy.int32).reshape(4, 5, 6)
    for array in (whole, whole[1:3, ::2, 1:], whole.transpose(2, 0, 1), whole[:0], whole.astype(numpy.float64)):
        found = device_array("x", Elsewhere(array), 3, 77)
        assert (found.shape, found.dtype, found.itemsize) == (array.shape, str(array.dtype), array.itemsize)
        assert array.size == 0 or (found.address, found.strides) == (array.ctypes.data, array.strides)
        assert found.is_dense == array.flags.c_contiguous


def test_plans_in_graphs_are_not_let_go(tmp_path):
    run(tmp_path, DEVICE + """
import gc, weakref
with heddle.Comm.open() as comm:
    n, rank = comm.size, comm.rank
    comm.attach_device("cuda:0", "peer")
    stream, graph, ready = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    called("cudaStreamCreateWithFlags", ctypes.byref(stream), 1)
    plans = [comm.reshard(f"f32[t=7 s={5 + i}] on [sp={n}]: t@sp -> s@sp", space="device") for i in range(2)]
    src = ByInterface(np.full(plans[0].src_shape, rank + 1, np.float32), stream.value)
    out = ByInterface(np.zeros(plans[0].dst_shape, np.float32), stream.value)
    called("cudaStreamBeginCapture", stream, 2)
    plans[0].execute(src.address.value, out.address.value, stream.value)
    called("cudaStreamEndCapture", stream, ctypes.byref(graph))
    called("cudaGraphInstantiate", ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
    assert plans[0].is_captured() and not plans[1].is_captured()
    alive = [weakref.ref(plan) for plan in plans]
    del plans
    comm.plans_max = 2
    for i in range(2, 5):
        comm.reshard(f"f32[t=7 s={5 + i}] on [sp={n}]: t@sp -> s@sp", space="device")
    gc.collect()
    assert alive[0]() is not None and alive[1]() is None
    called("cudaGraphLaunch", ready, stream)
    assert out.get().sum() == sum((r + 1) * (b - a) for r, (a, b) in
                                  enumerate(zip(blocks(7, n), blocks(7, n)[1:]))) * out.shape[1]
    called("cudaGraphExecDestroy", ready)
    called("cudaGraphDestroy", graph)
    comm.barrier()
gc.collect()
assert alive[0]() is None
print("ok")
""", 2)

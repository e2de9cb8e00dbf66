"""libheddle_probe (tests/device/probe.c) from Python, and times of what is enqueued, by turns.

Under PROBE_EMULATED=1 arrays of heddle's are the emulated device's and torch's the CPU's: that shows that a script
works, and that both come to the same; its times are nothing.
"""
import ctypes
import os
import statistics
import sys
import time

try:
    import torch
except ImportError as error:
    print(f"no torch: {error}")
    sys.exit(77)

EMULATED = os.environ.get("PROBE_EMULATED") == "1"
DEVICE = "cpu" if EMULATED else "cuda"
if EMULATED:
    torch.set_num_threads(1)
COLD_BYTES, SAMPLE_MS, SAMPLES = 256 << 20, 2, 9
#: numbers of heddle_dtype
NUMBERS = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


class Probe:
    def __init__(self):
        if not EMULATED and not torch.cuda.is_available():
            print("no device: torch finds none")
            sys.exit(77)
        if EMULATED:  # its calls of CUDA are its own, not those of the CUDA that torch has loaded for all
            ctypes.CDLL(f"{os.environ['HEDDLE_MODULE_PATH']}/libheddle_cuda.so", os.RTLD_NOW | os.RTLD_DEEPBIND)
        self.library = ctypes.CDLL(os.environ["HEDDLE_PROBE"])
        if not EMULATED:
            stream = torch.cuda.Stream()
            torch.cuda.set_stream(stream)
        self("open", b"cuda:0")

    def text(self, name, *arguments):
        function = getattr(self.library, f"probe_{name}")
        function.restype = ctypes.c_char_p
        return function(*arguments).decode()

    def __call__(self, name, *arguments):
        """Enqueues it on torch's current stream where it takes one, which is the last of its arguments: STREAM."""
        if getattr(self.library, f"probe_{name}")(*[word(a) for a in arguments]) != 0:
            raise RuntimeError(f"{name}: {self.text('error')}")

    def number(self, name, *arguments):
        function = getattr(self.library, f"probe_{name}")
        function.restype = ctypes.c_int64
        return function(*arguments)

    def made(self, name, *arguments):
        out = ctypes.c_void_p()
        self(f"{name}_make", ctypes.byref(out), *arguments)
        return out


class Stream:
    """Torch's current one, when it is asked."""


STREAM = Stream()


def word(value):
    if isinstance(value, int):
        return ctypes.c_int64(value)
    if isinstance(value, There):
        return ctypes.c_void_p(value.at)
    if value is STREAM:
        return ctypes.c_void_p(None if EMULATED else torch.cuda.current_stream().cuda_stream)
    return value


class There:
    """A tensor as heddle finds it on its device."""

    def __init__(self, probe, tensor):
        self.probe, self.tensor, self.at = probe, tensor.contiguous(), None
        self.nbytes = tensor.numel() * tensor.element_size()
        if EMULATED:
            out = ctypes.c_void_p()
            probe("alloc", ctypes.byref(out), self.nbytes + 1)
            self.at = out.value
            self.refill(self.tensor)
        else:
            self.at = self.tensor.data_ptr()

    def refill(self, tensor):
        if not EMULATED:
            self.tensor.copy_(tensor)
            return
        self.probe("copy", self, ctypes.c_void_p(tensor.data_ptr()), self.nbytes, STREAM)
        self.probe("settle", STREAM)

    def read(self):
        """What is there now, as a tensor of torch's device."""
        if not EMULATED:
            return self.tensor
        out = torch.empty_like(self.tensor)
        self.probe("copy", ctypes.c_void_p(out.data_ptr()), self, self.nbytes, STREAM)
        self.probe("settle", STREAM)
        return out

    def __del__(self):
        if EMULATED and self.at is not None:
            self.probe.library.probe_free(ctypes.c_void_p(self.at))


def settle():
    if not EMULATED:
        torch.cuda.synchronize()


def sample(call, calls):
    """ms a call, by the device's clock."""
    if EMULATED:
        begin = time.perf_counter()
        call(0)
        return (time.perf_counter() - begin) * 1e3
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for i in range(calls):
        call(i)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def by_turns(**calls):
    """Median ms a call of each, which is given a number that counts, so that arrays may alternate."""
    times = {name: [] for name in calls}
    each = {}
    for name, call in calls.items():
        call(0)
        settle()
        each[name] = max(1, min(200, int(SAMPLE_MS / max(sample(call, 2), 1e-3))))
    for _ in range(1 if EMULATED else SAMPLES):
        for name, call in calls.items():
            times[name].append(sample(call, each[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def alternating(nbytes):
    """How many arrays of so many bytes are more than a device's cache holds."""
    return 1 if EMULATED else max(1, min(24, -(-COLD_BYTES // max(nbytes, 1))))


def host_us(call, calls):
    """us of the host to enqueue one, while the device has room for all of them; the median of samples."""
    found = []
    for _ in range(1 if EMULATED else SAMPLES):
        settle()
        begin = time.perf_counter()
        for i in range(calls):
            call(i)
        found.append((time.perf_counter() - begin) * 1e6 / calls)
    settle()
    return statistics.median(found)


def check(what, got, wanted, within):
    """Of what is largest."""
    got, wanted = got.float(), wanted.float()
    far = float((got - wanted).abs().max() / (wanted.abs().max() + 1e-9))
    if got.shape != wanted.shape or not far <= within:
        raise AssertionError(f"{what}: {tuple(got.shape)} is off by {far:.2e} of the largest of {tuple(wanted.shape)}")

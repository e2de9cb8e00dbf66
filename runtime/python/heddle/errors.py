"""What went wrong, as exceptions: one class per status of the library, its sentence as the text."""
from __future__ import annotations

from . import _abi


class Error(Exception):
    """Whatever the library refuses or cannot do. `status` is the number of heddle/status.h."""

    status: int = -1


class ArgumentError(Error, ValueError):
    """An argument is out of its documented range, or arrays overlap."""

    status = _abi.HEDDLE_ERR_ARG


class NoMemoryError(Error, MemoryError):
    """Memory could not be had; the sentence says how many bytes."""

    status = _abi.HEDDLE_ERR_NOMEM


class UnsupportedError(Error, NotImplementedError):
    """Valid, but not available here: the sentence names what is missing."""

    status = _abi.HEDDLE_ERR_UNSUPPORTED


class LayoutError(Error, ValueError):
    """Shape, mesh and layout contradict one another."""

    status = _abi.HEDDLE_ERR_LAYOUT


class ParseError(Error, ValueError):
    """A text or a file does not follow its format; the sentence gives the position."""

    status = _abi.HEDDLE_ERR_PARSE


class FileError(Error, OSError):
    """A file or a pipe could not be read or written."""

    status = _abi.HEDDLE_ERR_IO


class MismatchError(Error):
    """Ranks ask for different things, or are in different calls; the sentence names two, with field or line."""

    status = _abi.HEDDLE_ERR_MISMATCH


class TransportError(Error):
    """The transport failed."""

    status = _abi.HEDDLE_ERR_TRANSPORT


class PeerError(Error):
    """Another rank died or gave up; the sentence names it."""

    status = _abi.HEDDLE_ERR_PEER


class DeadlineError(Error, TimeoutError):
    """A wait passed its deadline; the sentence names rank, peer and what was waited for."""

    status = _abi.HEDDLE_ERR_TIMEOUT


class DeviceError(Error):
    """A GPU call failed."""

    status = _abi.HEDDLE_ERR_DEVICE


class InfeasibleError(Error):
    """No plan satisfies the constraints; the sentence gives the reason."""

    status = _abi.HEDDLE_ERR_INFEASIBLE


class InternalError(Error):
    """A broken invariant inside heddle: please report it."""

    status = _abi.HEDDLE_ERR_INTERNAL


class InterruptedWait(Error):
    """A signal handler ended a wait; what the handler raised, KeyboardInterrupt for one, is raised in its place."""

    status = _abi.HEDDLE_ERR_INTERRUPTED


_BY_STATUS = {kind.status: kind for kind in Error.__subclasses__()}


def error_of(status: int, sentence: str) -> Error:
    return _BY_STATUS.get(status, Error)(sentence)

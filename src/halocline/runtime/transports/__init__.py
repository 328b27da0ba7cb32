"""Ways for tensors to travel between ranks, behind one interface."""

from halocline.runtime.transports.transport import NAMES, Handle, Transport, choose, make

__all__ = ["NAMES", "Handle", "Transport", "choose", "make"]

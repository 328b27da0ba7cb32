"""The machines that a run spans: how many there are, which one this is, where they meet, and which network interface of
this one leads to the others. Starts nothing.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_GET_ADDRESS = 0x8915
"""Linux's SIOCGIFADDR."""


@dataclass(frozen=True)
class Nodes:
    """Machines that each start the same number of processes; ranks count through them in order."""

    count: int = 1
    rank: int = 0
    """Which of them this is."""
    address: str = "localhost"
    """Of the first, where all meet."""
    port: int = 0
    """0 on one machine: any free one."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"{self.count} nodes cannot run anything: use NNODES=1 or more")
        if not 0 <= self.rank < self.count:
            raise ValueError(
                f"node rank {self.rank} of {self.count} nodes: use NODE_RANK=0 to {self.count - 1}, each on one node"
            )
        if not (0 if self.count == 1 else 1) <= self.port < 65536:
            raise ValueError(f"port {self.port} is not one that {self.count} nodes can meet at: use 1 to 65535")
        if self.count > 1 and is_loopback(self.address):
            raise ValueError(
                f"{self.count} nodes cannot meet at {self.address}, which each of them calls itself: set MASTER_ADDR "
                f"to the address by which the others reach node 0"
            )

    def share(self, processes: int) -> int:
        """The processes that each starts."""
        if processes % self.count:
            raise ValueError(
                f"{processes} processes do not divide into {self.count} nodes: {processes} / {self.count} = "
                f"{processes / self.count:g}; choose degrees whose product is a multiple of {self.count}"
            )
        return processes // self.count


def is_loopback(address: str) -> bool:
    """Whether a name or an address never leaves the machine."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost" or address.startswith("localhost.")


def interface_towards(address: str, port: int) -> str | None:
    """The name of the network interface through which an IPv4 address is reached; None where that cannot be told or
    does not leave the machine. Gloo, left alone, takes the one of the host's own name, which is often the loopback."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port))  # sends nothing: only asks for the route
            own = probe.getsockname()[0]
            if ipaddress.ip_address(own).is_loopback:
                return None
            return next((name for _, name in socket.if_nameindex() if _address(probe, name) == own), None)
    except OSError:
        return None


def machine() -> str:
    """What processes have alike that share a machine's network and see each other run, and no others: containers on
    several machines may bear one name, and those on one machine are machines of their own."""
    words = [socket.gethostname()]
    with suppress(OSError):
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        words += [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid")]
    return " ".join(words)


def own_addresses() -> list[str]:
    """The IPv4 addresses of this machine's interfaces, but for the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = [_address(probe, name) for _, name in socket.if_nameindex()]
    return [address for address in found if address is not None and not is_loopback(address)]


def _address(probe: socket.socket, name: str) -> str | None:
    """The IPv4 address of an interface."""
    try:
        import fcntl

        request = struct.pack("256s", name.encode()[:15])
        answer: Any = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
        return socket.inet_ntoa(answer[20:24])
    except (OSError, ImportError):
        return None

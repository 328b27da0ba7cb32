"""Network namespaces as machines: each with a name, an interface and a list of hosts of its own, and nothing else.

    with hosts(tmp_path) as (first, second):
        process = subprocess.Popen(first.command("python", "train.py"))

As on many machines, a host's own name leads to its loopback and only the others' names to their addresses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

NETWORK = "10.213.7"
COUNT = 2


@dataclass(frozen=True)
class Host:
    """One of the machines."""

    name: str
    address: str
    namespace: str
    list_of_hosts: Path

    def command(self, *words: str) -> list[str]:
        """The words of a command that runs there."""
        own = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'
        inside = ["unshare", "--uts", "--mount", "sh", "-ec", own, "sh", self.name, str(self.list_of_hosts)]
        return ["ip", "netns", "exec", self.namespace, *inside, *words]


@contextmanager
def hosts(directory: Path) -> Iterator[list[Host]]:
    """Two machines that reach each other; their lists of hosts lie in `directory`. Without the right to make them the
    test is skipped."""
    missing = [name for name in ("ip", "unshare", "mount") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"hosts need the command {missing[0]}: install iproute2 and util-linux")
    stem = f"halocline-{os.getpid()}"
    addresses = {f"node{n}": f"{NETWORK}.{n}" for n in range(1, COUNT + 1)}
    made = []
    for name, address in addresses.items():
        others = [f"{where} {other}" for other, where in addresses.items() if other != name]
        file = directory / f"hosts-{name}"
        file.write_text("\n".join(["127.0.0.1 localhost", f"127.0.1.1 {name}", *others, ""]))
        made.append(Host(name, address, f"{stem}-{name}", file))
    try:
        try:
            for host in made:
                _ip("netns", "add", host.namespace)
            first, second = made
            pair = ["netns", first.namespace, "type", "veth", "peer", "name", "eth1", "netns", second.namespace]
            _ip("link", "add", "eth1", *pair)
            for host in made:
                _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth1")
                for interface in ("lo", "eth1"):
                    _ip("-n", host.namespace, "link", "set", interface, "up")
            subprocess.run(first.command("true"), check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"hosts need the right to make network namespaces: {error.stderr.strip()}")
        yield made
    finally:
        for host in made:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", host.namespace)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

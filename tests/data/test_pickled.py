"""Pickles of arrays against Python's own unpickler, and pickles that would do something if they were run."""

from __future__ import annotations

import builtins
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halocline.data import BadFile, pickled
from halocline.data.pickled import read_pickle
from harness.cifar import array, write_pickle
from harness.cifar import pickled as operations

AGAIN = ": take the archive from those who publish it, and unpack it again"


def test_a_batch_is_what_pythons_unpickler_makes_of_it(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    write_pickle(path, 7)
    ours = read_pickle(str(path))
    theirs = pickle.loads(path.read_bytes(), encoding="bytes")  # as torchvision reads it, but for the words' type
    assert list(ours) == list(theirs) == [b"batch_label", b"labels", b"data", b"filenames"]
    assert np.array_equal(ours.pop(b"data"), theirs.pop(b"data"))
    assert ours == theirs


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_array_of_bytes(tmp_path: Path, protocol: int, order: Any) -> None:
    path = tmp_path / "array"
    for shape in ((), (5,), (3, 700), (2, 3, 4)):
        given = np.random.default_rng(0).integers(0, 256, shape, np.uint8).copy(order)
        path.write_bytes(pickle.dumps({"array": given, b"x": [1, None, True, -70000, (), (1, 2, 3, 4), "ö"]}, protocol))
        found = read_pickle(str(path))
        assert np.array_equal(found["array"], given) and found["array"].shape == shape
        assert found[b"x"] == [1, None, True, -70000, (), (1, 2, 3, 4), "ö"]


class Runs:
    """Pickled, it is a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def refused(path: Path, content: bytes) -> str:
    """The answer to a pickle, which is one line that names the file."""
    path.write_bytes(content)
    with pytest.raises(BadFile) as caught:
        read_pickle(str(path))
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and said.endswith(AGAIN) and "\n" not in said and len(said) < 400
    return said.removeprefix(f"{path}: ").removesuffix(AGAIN)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (os.system, "posix.system"),
        (builtins.eval, "builtins.eval"),
        (builtins.getattr, "builtins.getattr"),
        (np.load, "numpy.load"),
    ],
)
def test_names_are_refused_and_never_run(tmp_path: Path, function: Any, name: str, protocol: int) -> None:
    victim = tmp_path / "victim"
    hostile = {b"labels": [Runs(function, f"touch {victim}")], b"data": Runs(Runs, 1)}
    content = pickle.dumps(hostile, protocol)
    if protocol == 2 and name.startswith("builtins"):
        name = name.replace("builtins", "__builtin__")
    said = refused(tmp_path / "data_batch_1", content)
    assert said == f"names {name}, which no array of bytes needs; nothing of it was run"
    assert not victim.exists()


RECONSTRUCT, NDARRAY, DTYPE, ENCODE = (
    b"cnumpy.core.multiarray\n_reconstruct\n",
    b"cnumpy\nndarray\n",
    b"cnumpy\ndtype\n",
    b"c_codecs\nencode\n",
)
EMPTY = RECONSTRUCT + NDARRAY + b"K\0\x85U\1b\x87R"
BYTES = DTYPE + b"U\2u1K\0K\1\x87R"


@pytest.mark.parametrize(
    ("hostile", "said"),
    [
        (b"cos\nsystem\nU\4true\x85R", "names os.system, which no"),
        (b"cnumpy\n_core.os.system\n.", "names numpy._core.os.system, which no"),
        (b"cnumpy\nndarray.__reduce__\n", "names numpy.ndarray.__reduce__"),
        (b"c\x1b[31mred\nname\n", r"names \x1b[31mred.name"),
        (b"c" + b"a" * 300 + b"\nb\n", "has no name at byte"),
        (b"K\1K\2\x93", "names what is no word"),
        (RECONSTRUCT + DTYPE + b"K\0\x85U\1b\x87R", "calls _reconstruct as no array of bytes does"),
        (RECONSTRUCT + NDARRAY + b"J\xff\xff\xff\x7f\x85U\1b\x87R", "calls _reconstruct as"),
        (NDARRAY + b"K\0\x85\x85R", "calls ndarray as"),
        (NDARRAY + b"K\0R", "is damaged at byte"),
        (b"U\1xK\0\x85R", "calls what has no name"),
        (b"K\1" + RECONSTRUCT + b"\x85R", "calls what has no name"),
        (DTYPE + b"U\1OK\0K\1\x87R", "has an array of b'O', and CIFAR's are of bytes"),
        (DTYPE + b"U\2f8K\0K\1\x87R", "has an array of b'f8'"),
        (DTYPE + b"]K\0K\1\x87R", "has an array of another type"),
        (DTYPE + b"U\2u1\x85R", "calls dtype as"),
        (BYTES + b"(K\3U\1<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb", "fills in what is no array of bytes"),
        (BYTES + b"(K\3U\1|N(U\1xtNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb", "fills in what is no array"),
        (ENCODE + b"X\1\0\0\0aX\4\0\0\0utf8\x86R", "calls encode as"),
        (ENCODE + b"U\1aU\6latin1\x86R", "calls encode as"),
        (ENCODE + b")R", "calls encode as"),
        (DTYPE + b")R", "calls dtype as"),
        (b"X\5\0\0\0bytes(K\3tb", "fills in what is no array of bytes"),
        (ENCODE + b"X\2\0\0\0\xc4\x80X\6\0\0\0latin1\x86R", "is damaged at byte"),
        (EMPTY + b"(K\1K\2\x85" + BYTES + b"\x89U\1xtb", "has an array of 2 and 1 bytes for it"),
        (EMPTY + b"(K\1" + b"J\xff\xff\xff\x7f" * 3 + b"\x87" + BYTES + b"\x89U\1xtb", "has an array of 2147483647 x"),
        (EMPTY + b"(K\1J\xff\xff\xff\xff\x85" + BYTES + b"\x89U\0tb", "fills in an array at byte"),
        (EMPTY + b"(K\1(" + b"K\1" * 9 + b"t" + BYTES + b"\x89U\1xtb", "fills in an array at byte"),
        (EMPTY + b"(K\1K\1\x85U\1O\x89U\1xtb", "fills in an array at byte"),
        (EMPTY + b"(K\1K\1\x85" + BYTES + b"\x89]tb", "has an array of 1 and no bytes for it"),
        (EMPTY + b"K\1b", "fills in what is no array"),
        (EMPTY + b"(K\1K\1\x85" + BYTES + b"\x89U\1xtbq\1(K\1K\1\x85" + BYTES + b"\x89U\1xtb", "fills in what is no"),
        (b"}}b", "fills in what is no array of bytes"),  # a class's __setstate__, or its __dict__
        (EMPTY, "is damaged at byte"),
        (EMPTY + b"(tb", "is damaged at byte"),
        (b"]]s", "is damaged at byte"),
        (b"}(K\1K\2u", "is damaged at byte"),
        (b"}(U\1au", "is damaged at byte"),
        (b"h\7", "is damaged at byte"),
        (b"t", "is damaged at byte"),
        (b"T\xff\xff\xff\xff", "is cut off at byte"),
        (b"\x8e" + b"\xff" * 8, "is cut off at byte"),
        (b"T\xff\xff\xff\x7fabc", "is cut off at byte"),
        (b"(iposix\nsystem\n", "is no pickle of an array at byte 3 ('i')"),
        (b"(oK\1", "is no pickle of an array at byte 3 ('o')"),
        (b"\x81", r"is no pickle of an array at byte 2 ('\x81')"),
        (b"\x82\1", r"is no pickle of an array at byte 2 ('\x82')"),
        (b"Pid\n", "is no pickle of an array at byte 2 ('P')"),
        (b"I" + b"9" * 100_000 + b"\n", "is no pickle of an array at byte 2 ('I')"),
        (b"\x8b\xff\xff\xff\x7f", r"is no pickle of an array at byte 2 ('\x8b')"),
    ],
)
def test_hostile_and_damaged_pickles(tmp_path: Path, hostile: bytes, said: str) -> None:
    for end in (b".", b"}q\1."):
        assert refused(tmp_path / "data_batch_1", b"\x80\2" + hostile + end).startswith(said)


def test_bombs_end_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data_batch_1"
    # A word that is encoded again and again would fill the memory from a small file.
    encode = b"h\1h\2X\6\0\0\0latin1\x86R"
    word = b"X" + struct.pack("<I", 1000) + b"a" * 1000
    assert refused(path, b"\x80\2" + ENCODE + b"q\1" + word + b"q\2" + encode * 9 + b".").startswith(
        "encodes more bytes"
    )
    monkeypatch.setattr(pickled, "OPERATIONS", 1000)
    assert refused(path, b"\x80\2" + b"]" * 2000 + b".").startswith("has more than 1000 operations")
    # Lists in lists, a thousand million elements deep if they were written out; a place in the memo far away.
    doubled = b"]q\1" + b"".join(b"](h%ch%ceq%c" % (n, n, n + 1) for n in range(1, 30))
    path.write_bytes(b"\x80\2(" + doubled + b"r\xff\xff\xff\xfft.")
    assert len(read_pickle(str(path))) == 30
    monkeypatch.undo()
    path.write_bytes(b"\x80\2)" + b"\x85" * 200_000 + b".")  # deeper than Python's own stack
    assert len(read_pickle(str(path))) == 1


def test_every_way_to_cut_a_file_off(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    whole = operations({b"labels": b"](K\1K\2e", b"data": array((2, 300), bytes(600))})
    for end in range(len(whole)):
        refused(path, whole[:end])
    assert refused(path, b"").startswith("the file is empty")
    assert refused(path, whole[:200]) == "is cut off at byte 161 of 200, where 600 belong"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 60))
def test_nonsense_is_a_value_or_one_line(tmp_path: Path, nonsense: bytes, place: int, removed: int) -> None:
    path = tmp_path / "data_batch_1"
    whole = operations({b"labels": b"](K\1K\2e", b"data": array((2, 3), bytes(6))})
    path.write_bytes(whole[:place] + nonsense + whole[place + removed :])
    try:
        read_pickle(str(path))
    except BadFile as error:
        assert "\n" not in str(error)

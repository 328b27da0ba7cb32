"""The front door: `halocline VERB ...`. Finds the verb, runs it, and answers every mistake with one line and a fix.

Exit codes: 0 done, 1 what was asked about is wrong, 2 what was asked is wrong, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from halocline.cli.verbs import find, run, usage

_FIXES = {
    FileNotFoundError: "give the path of a file that exists",
    IsADirectoryError: "give a file, not a directory",
    NotADirectoryError: "give a path whose parents are directories",
    PermissionError: "give a path you may use",
}


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command line; `--debug`, anywhere in it, shows where an error came from."""
    given = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in given
    given = [word for word in given if word != "--debug"]
    try:
        code = _answer(given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has gone (`halocline ... | head`). Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("halocline: interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        if debug:
            raise
        print(f"halocline: error: {one_line(error)}", file=sys.stderr)
        return 2


def _answer(words: list[str]) -> int:
    if words[:1] == ["--version"]:
        from halocline import __version__

        print(f"halocline {__version__}")
        return 0
    if words[:1] in (["--install-completion"], ["--print-completion"]):
        from halocline.cli.completion import complete

        return complete(words)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0
    verb, rest = find(words)
    if verb is None:
        print(usage(words[0]))
        return 0
    return run(verb, rest)


def one_line(error: Exception) -> str:
    """What is said of a mistake."""
    if isinstance(error, OSError) and error.filename is not None:
        fix = next((text for kind, text in _FIXES.items() if isinstance(error, kind)), "give another path")
        folder = os.path.dirname(os.fspath(error.filename))
        if isinstance(error, FileNotFoundError) and folder and not os.path.isdir(folder):
            fix = f"there is no directory {folder}: make it, or give another path"
        return f"{error.filename}: {(error.strerror or 'cannot be used').lower()}: {fix}"
    return " ".join(str(error).split())

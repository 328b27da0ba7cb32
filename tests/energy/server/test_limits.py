"""Who may ask: the token, how it is sent, and that a server without one stays at home."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from halocline.cli import main
from halocline.energy.client import Client, ServerRefused
from harness.serving import Near, Own

TOKEN = "0123456789abcdef"


def test_only_who_has_the_token_may_ask(near: Callable[..., Near]) -> None:
    server = near(token=TOKEN)
    for path in ("/jobs", "/info", "/metrics", "/frontier/x", "/schedule/x?rank=0"):
        status, body = server.ask("GET", path)
        assert (status, "Bearer" in body["detail"]) == (401, True), path
    basic = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    for header in (f"Bearer {TOKEN}", f"bearer  {TOKEN}", f"Basic {basic}"):
        assert server.ask("GET", "/jobs", headers={"Authorization": header}) == (200, [])
    for header in (f"Bearer {TOKEN}x", "Bearer ", TOKEN, "Basic !!!", "Basic " + base64.b64encode(b"x").decode()):
        assert server.ask("GET", "/jobs", headers={"Authorization": header})[0] in (401, 429)
    # What tells nothing of any job is open: the page asks for the token itself.
    assert server.ask("GET", "/health")[0] == 200
    assert "<title>" in server.ask("GET", "/")[1]


def test_guessing_is_held_back_and_the_token_is_not(near: Callable[..., Near]) -> None:
    server = near(token=TOKEN)
    wrong = [server.ask("GET", "/jobs", headers={"Authorization": f"Bearer {n:016d}"})[0] for n in range(60)]
    assert set(wrong) == {401, 429}
    assert server.ask("GET", "/jobs", headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200


def test_pages_of_other_sites_may_not_ask(near: Callable[..., Near]) -> None:
    server = near()
    assert server.ask("GET", "/jobs", headers={"Origin": "http://example.com"})[0] == 403
    assert server.ask("GET", "/jobs", headers={"Origin": "null"})[0] == 403
    assert server.ask("GET", "/jobs", headers={"Origin": server.url})[0] == 200


def test_without_a_token_another_sites_name_does_not_lead_here(near: Callable[..., Near]) -> None:
    server = near()
    for name in ("example.com", "example.com.:7787", "localhost.example.com", "127.0.0.1.example.com", "1.2"):
        status, body = server.ask("GET", "/jobs", headers={"Host": name, "Origin": f"http://{name}"})
        assert (status, "token" in body["detail"]) == (421, True), name
    for name in (
        "localhost",
        "LOCALHOST:1",
        "localhost.",
        "127.0.0.1",
        "0.0.0.0:7787",
        "[::1]",
        "[::1]:7787",
        "node7",
        "",
    ):
        assert server.ask("GET", "/jobs", headers={"Host": name})[0] == 200, name
    guarded = near(token=TOKEN)
    headers = {"Host": "energy.example.com", "Authorization": f"Bearer {TOKEN}"}
    assert guarded.ask("GET", "/jobs", headers=headers)[0] == 200


def test_the_client_sends_its_token_or_that_of_the_address(near: Callable[..., Near]) -> None:
    server = near(token=TOKEN)
    assert Client(server.url, token=TOKEN).jobs() == []
    assert Client(server.url.replace("http://", f"http://anybody:{TOKEN}@")).jobs() == []
    with pytest.raises(ServerRefused) as refused:
        Client(server.url).jobs()
    assert refused.value.status == 401


def test_a_server_takes_its_token_from_a_file(own: Callable[..., Own], tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    server = own("--token-file", str(tmp_path / "token"))
    assert server.ask("GET", "/jobs")[0] == 401
    assert Client(server.url, token=TOKEN).jobs() == []


@pytest.mark.parametrize(
    "words,named",
    [
        ("--host 0.0.0.0", "0.0.0.0"),
        ("--host ::", "::"),
        ("--host example.com", "example.com"),
        ("--token-file {short}", "16"),
        ("--token-file {empty}", "empty"),
        ("--token-file {tmp}/nothing", "nothing"),
        ("--scheduler best", "best"),
        ("--scheduler point-solution", "--plans"),
        ("--plans {tmp}", "0 frequency plans"),
        ("--plans {short}", "short"),
        ("--port 70000", "70000"),
        ("--stride 0", "stride"),
        ("--rank-timeout 0", "rank-timeout"),
        ("--blocking-power -1", "blocking-power"),
        ("--schedule fast", "fast"),
        ("--plan p.toml --microbatches 4", "p.toml"),
        ("--data {short}", "short"),
        ("--data {tmp}/short/x.sqlite", "short"),
    ],
)
def test_wrong_options_are_answered_in_one_line(
    words: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HALOCLINE_ENERGY_TOKEN", raising=False)
    (tmp_path / "short").write_text("short")
    (tmp_path / "empty").write_text("")
    line = words.format(tmp=tmp_path, short=tmp_path / "short", empty=tmp_path / "empty")
    assert main(["energy", "serve", "--port", "0", "--data", str(tmp_path / "x.sqlite"), *line.split()]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"halocline: error: .*\n", error) and named in error


def test_a_token_of_the_environment_opens_the_door_to_other_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALOCLINE_ENERGY_TOKEN", TOKEN)
    # An address of nobody's: with the token it is tried, and found not to be this machine's.
    code = main(["energy", "serve", "--host", "192.0.2.1", "--port", "0", "--data", str(tmp_path / "x.sqlite")])
    assert code == 2 and "cannot listen on 192.0.2.1" in capsys.readouterr().err

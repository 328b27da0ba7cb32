"""The page in a real browser: jobs, the frontier, the slider that redraws the timeline, and the token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from halocline.energy.client import Client
from halocline.energy.frontier.frontier import solve
from halocline.plan.plan import Plan
from harness.browser import Browser, find
from harness.serving import BLOCKING, Cast, Near, profile

TOKEN = "0123456789abcdef"
PLAN = Plan.uniform(4, microbatches=6)
COLOURS = """(() => {
  const canvas = document.getElementById("timeline"), pen = canvas.getContext("2d");
  const pixels = pen.getImageData(0, 0, canvas.width, canvas.height).data, found = new Set();
  for (let i = 0; i < pixels.length; i += 4) if (pixels[i + 3] === 255) found.add(pixels.slice(i, i + 3).join());
  return found.size;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find()
    if program is None:
        pytest.skip("no Chromium here: install the package chromium to run the page's tests")
    made = Browser(program, tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


def text(browser: Browser, name: str) -> str:
    return str(browser.value(f"document.getElementById({name!r}).innerText"))


def test_the_page_shows_a_job_its_frontier_and_the_plan_under_the_slider(
    browser: Browser, near: Callable[..., Near], tmp_path: Path
) -> None:
    server = near(patience=9, solve_wait=60.0)
    ranks = Cast(Client(server.url, timeout=60.0), PLAN).register()
    ranks.play(until="deployed")
    frontier = solve(PLAN, profile(4), BLOCKING)
    browser.requested.clear()
    browser.complaints.clear()
    browser.open(server.url)
    browser.wait('document.getElementById("timeline")?.dataset.bars')

    # Everything comes from the server itself, and nothing went wrong.
    assert all(url.startswith((server.url, "data:")) for url in browser.requested)
    assert browser.complaints == []
    assert ranks.job in text(browser, "jobs") and "deployed" in text(browser, "jobs")
    assert "simulated" in text(browser, "jobs")
    assert browser.value('!document.getElementById("simulated").hidden')
    assert browser.value('document.getElementById("door").offsetParent === null')
    corners = browser.value('document.querySelector("#curve .frontier").getAttribute("points").split(" ").length')
    assert corners == len(ranks.client.frontier(ranks.job)["points"]) > 5

    # The fastest plan first.
    fastest = frontier.plan_at(frontier.time_min)
    shown = browser.value('({...document.getElementById("timeline").dataset})')
    assert float(shown["time"]) == pytest.approx(fastest.time)
    assert int(shown["bars"]) == 4 * 6 * 2
    used = {frequency for row in fastest.frequencies for _, frequency in row}
    assert {int(f) for f in shown["frequencies"].split()} == used
    saving = 100 * (1 - fastest.energy / frontier.all_max.energy)
    expected = f"{saving:.1f} % less energy than everything at its highest frequency, as fast."
    assert expected in text(browser, "saved") and "Simulated" in text(browser, "saved")
    assert browser.value(COLOURS) >= len(used)
    browser.screenshot(tmp_path / "fastest.png")

    # The slider at its end: another plan, other colours.
    browser.value(
        '(() => { const slider = document.getElementById("time"); slider.value = 1000;'
        ' slider.dispatchEvent(new Event("input")); })()'
    )
    slow = frontier.plan_at(frontier.time_star)
    browser.wait(f'Math.abs(document.getElementById("timeline").dataset.time / {slow.time} - 1) < 1e-6')
    shown = browser.value('({...document.getElementById("timeline").dataset})')
    assert {int(f) for f in shown["frequencies"].split()} == {f for row in slow.frequencies for _, f in row}
    saving = 100 * (1 - slow.energy / frontier.all_max.energy)
    assert f"{abs(saving):.1f} % {'less' if saving > 0 else 'more'} energy" in text(browser, "saved")
    # A later look at the server leaves the slider where it is.
    looked = browser.value("document.body.dataset.looked")
    browser.wait(f"document.body.dataset.looked !== {looked!r}")
    assert browser.value('document.getElementById("time").value') == "1000"
    assert browser.complaints == []
    ranks.close()


def test_the_page_asks_for_the_token(browser: Browser, near: Callable[..., Near]) -> None:
    server = near(token=TOKEN)
    Client(server.url, token=TOKEN).register_job(PLAN, device="simulated")
    browser.open(server.url)
    browser.wait('document.getElementById("door") && document.getElementById("door").offsetParent !== null')
    assert text(browser, "jobs") == ""
    browser.value(
        f'(() => {{ document.getElementById("token").value = {TOKEN!r};'
        ' document.getElementById("door").requestSubmit(); })()'
    )
    browser.wait('document.getElementById("jobs").innerText.includes("waiting")')
    # What is known of a job comes by a request of its own, after the list.
    browser.wait('document.getElementById("waiting").innerText.includes("Waiting for rank 0, 1, 2, 3.")')
    browser.wait('document.getElementById("door").offsetParent === null')


def test_names_that_look_like_markup_stay_names(browser: Browser, near: Callable[..., Near]) -> None:
    server = near()
    nasty = "<img src=x onerror=document.title='broken'>"
    Client(server.url).register_job(PLAN, device=nasty, metadata=nasty)
    browser.open(server.url)
    browser.wait('document.getElementById("summary")?.innerText.includes("onerror")')
    assert browser.value("document.title") == "Halocline energy"
    assert browser.value('document.querySelectorAll("img").length') == 0

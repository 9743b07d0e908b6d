"""Sessions in a real Chromium: what their owner sees, what is there on return, what their page cannot reach."""

from __future__ import annotations

import json
import re
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jupyter_seat import Seat
from playwright.sync_api import Browser, BrowserContext, Page, expect
from session_rig import Switch, a_front, a_jupyter, a_session, a_unix_server, serving, wait_until
from small_broker import GIB, device, lease, request, tenant
from small_server import SmallServer

from carrel.testing.waiting import PATIENCE as SECONDS
from support.chromium import a_chromium, answer_select_kernel
from support.ports import kept_port

pytestmark = pytest.mark.browser
#: Milliseconds, as Playwright counts.
PATIENCE = 1000 * SECONDS
STATUS = ".carrel-status"
#: Seen now and then when a cell is run in the first moments of a page, before there is a session; no line of ours reads it so.
NOT_OURS = ("Cannot read properties of null (reading 'kernel')",)
#: JupyterLab's words for a question to the kernel that nobody waits for any more, because the page that asked was closed.
CLOSED_MEANWHILE = re.compile(r"Could not restore the debugger state: Canceled future for debug_request message")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with a_chromium() as browser:
        yield browser


@dataclass
class Window:
    """A browser window, and what it complained about."""

    context: BrowserContext
    label: str
    complaints: list[str] = field(default_factory=list)

    def page(self) -> Page:
        page = self.context.new_page()
        page.set_default_timeout(PATIENCE)
        answer_select_kernel(page)
        page.on("console", lambda message: self._hear(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)) if str(error) not in NOT_OURS else None)
        page.on("request", lambda request: self._look(request.url))
        return page

    def _hear(self, text: str) -> None:
        if not CLOSED_MEANWHILE.match(text):
            self.complaints.append(text)

    def _look(self, url: str) -> None:
        if self.label not in url.partition("?")[0] and not url.startswith(("data:", "blob:")):
            self.complaints.append(f"asked for {url}")


@pytest.fixture
def window(chromium: Browser, seat: Seat) -> Iterator[Window]:
    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    seat.broker.say()
    window = Window(context, seat.label)
    yield window
    context.close()
    assert window.complaints == []  # no error, nothing that was stopped, no request to anybody else


def notebook(files: Path, *sources: str) -> str:
    """A notebook with these cells; returns its name."""
    cells = [
        {"cell_type": "code", "id": f"cell{number}", "metadata": {}, "source": source, "outputs": [], "execution_count": None}
        for number, source in enumerate(sources)
    ]
    kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    body = {"cells": cells, "metadata": {"kernelspec": kernelspec}, "nbformat": 4, "nbformat_minor": 5}
    name = f"{uuid.uuid4().hex[:8]}.ipynb"
    (files / name).write_text(json.dumps(body))
    return name


def is_ready(page: Page) -> None:
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")


def run_first(page: Page) -> None:
    """Run the first cell. JupyterLab loses what comes in the first moments after it says that it is idle."""
    for _ in range(12):
        page.locator(".jp-NotebookPanel:visible .jp-Cell .cm-content").first.click()
        page.get_by_role("button", name="Run this cell and advance").click()
        try:
            expect(prompt(page)).not_to_have_text("[ ]:", timeout=15_000)
        except AssertionError:
            continue
        return


def choose(page: Page, menu: str, *items: str) -> None:
    """Choose from the menu bar."""
    page.get_by_role("menuitem", name=menu, exact=True).click()
    for item in items:
        page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{item}$")).click()


def outputs(page: Page) -> Any:
    return page.locator(".jp-NotebookPanel:visible .jp-OutputArea").first


def prompt(page: Page) -> Any:
    return page.locator(".jp-NotebookPanel:visible .jp-InputPrompt").first


@pytest.mark.gate
def test_a_notebook_runs_and_the_status_bar_tells_of_the_gpu(seat: Seat, window: Window) -> None:
    page = window.page()
    page.goto(seat.link(f"/lab/tree/{notebook(seat.jupyter.files, 'print(6 * 7)')}?reset"))
    assert "ticket" not in page.evaluate("document.referrer + location.href")
    assert "carrel-session" not in page.evaluate("document.cookie")
    expect(page.locator(STATUS)).to_have_text("no GPU held (simulated)")
    is_ready(page)
    run_first(page)
    expect(outputs(page)).to_have_text("42", timeout=PATIENCE)
    # The list of kernels beside it, which may be hidden, has the same text.
    expect(page.get_by_text("Python 3 (default)").filter(visible=True).first).to_be_visible()


STATES = [
    ({"tenants": [tenant("t1")], "leases": [lease("l1")]}, "GPU 0 · running (simulated)"),
    ({"tenants": [tenant("t1")], "leases": [lease("l1", devices=["SIM-0", "SIM-1"])]}, "GPUs 0, 1 · running (simulated)"),
    ({"tenants": [tenant("t1")], "leases": [lease("l1", state="paused")]}, "GPU 0 · suspended while others run (simulated)"),
    ({"tenants": [tenant("t1")], "leases": [lease("l1", state="held")]}, "GPU 0 · held (simulated)"),
    ({"tenants": [tenant("t1")], "queue": [request(estimate=None)]}, "waiting: 2nd (simulated)"),
    ({"tenants": [tenant("t1", state="suspended")]}, "suspended (simulated)"),
    ({"tenants": [tenant("t1")]}, "no GPU held · state on GPU 0 (simulated)"),
    ({"tenants": [tenant("t1", state="lost")]}, "GPU state lost (simulated)"),
    ({"tenants": [tenant("t2", mine=False)], "leases": [lease("l2", tenant="t2", mine=False)]}, "no GPU held (simulated)"),
]


def test_the_status_bar_follows_the_broker(seat: Seat, window: Window) -> None:
    page = window.page()
    page.goto(seat.link())
    for said, text in STATES:
        seat.broker.say(**said)
        expect(page.locator(STATUS)).to_have_text(text)
    seat.broker.say(queue=[request()], tenants=[tenant("t1")])
    expect(page.locator(STATUS)).to_have_text(IN_LINE)
    expect(page.locator(STATUS)).to_have_attribute("title", "waiting for a GPU: 2nd in line, about 40 s")
    expect(page.locator(".carrel-unseen[role=status]")).to_have_text("waiting: 2nd, ~40 s (simulated)")
    first = estimate(page)
    wait_until(lambda: estimate(page) < first, "it to run down")
    seat.broker.away = True
    seat.broker.hang_up()
    expect(page.locator(STATUS)).to_have_text("broker does not answer")
    seat.broker.away = False
    expect(page.locator(STATUS)).to_have_text(IN_LINE)


IN_LINE = re.compile(r"^waiting: 2nd, ~(\d+) s \(simulated\)$")


def estimate(page: Page) -> int:
    """Seconds that the status bar says are left."""
    found = IN_LINE.match(page.locator(STATUS).inner_text())
    assert found is not None
    return int(found[1])


def test_the_status_bar_says_why_a_gpu_stays(seat: Seat, window: Window) -> None:
    page = window.page()
    page.goto(seat.link("/lab?reset"))
    seat.broker.say(tenants=[tenant("t1", suspendable=False, why_not="JAX")], leases=[lease("l1", state="held")])
    expect(page.locator(STATUS)).to_have_text("GPU 0 · held (simulated)")
    expect(page.locator(STATUS)).to_have_attribute("title", "The GPU stays with this kernel: its state cannot be moved (JAX)")


def test_the_panel_shows_who_has_what(seat: Seat, window: Window) -> None:
    stranger = {"pid": 4711, "bytes": GIB, "name": "python"}
    seat.broker.say(
        devices=[
            device(0, used=11 * GIB, lease="l2", residents=["t1", "t2"], strangers=[stranger]),
            device(1, withheld="cordoned: the driver hung twice"),
        ],
        tenants=[
            tenant("t1", suspendable=False, why_not="managed memory", cells=1),
            tenant("t2", mine=False, owner="", label="<b>x</b>"),
        ],
        leases=[lease("l2", tenant="t2", mine=False, owner="")],
        queue=[request(position=1, tenant="t9", mine=False, owner="bob", estimate=None, message="waits"), request()],
        history=[
            {"cell": "c", "at": 1_800_000_000, "waited": 3.2, "held": 125.0, "devices": ["SIM-1", "SIM-0"], "outcome": "ok"}
        ],
    )
    page = window.page()
    page.goto(seat.link())
    panel = page.get_by_role("region", name="GPUs", exact=True)
    for _ in range(18):
        page.locator(STATUS).press("Enter")
        try:
            expect(panel).to_be_visible(timeout=10_000)
        except AssertionError:
            continue  # JupyterLab was still restoring its layout, which moves the focus
        break
    expect(panel).to_contain_text("These GPUs are simulated")
    expect(panel).to_contain_text("computes for somebody else")
    expect(panel).to_contain_text("State of: work.ipynb, <b>x</b>")
    expect(panel).to_contain_text("A process without a lease: python 4711 (1.0 GiB)")
    expect(panel).to_contain_text("Not lent: cordoned: the driver hung twice")
    expect(panel).to_contain_text("1st: bob")
    expect(panel).to_contain_text("waiting for a GPU: 2nd in line, about 40 s")
    expect(panel).to_contain_text("Cannot be moved: managed memory")
    expect(panel).to_contain_text("13 s of GPU in 1 cell, 1 min waited.")
    expect(panel.get_by_role("meter", name="Memory of GPU 0 (simulated)")).to_have_attribute(
        "aria-valuetext", "11 GiB of 16 GiB used"
    )
    row = panel.get_by_role("table").get_by_role("row").nth(1)
    expect(row).to_contain_text("2 min")
    expect(row).to_contain_text("GPUs 0, 1")
    for theme, dark in (("JupyterLab Dark", True), ("JupyterLab Light", False)):
        choose(page, "Settings", "Theme", theme)
        page.wait_for_selector(f"body[data-jp-theme-light={str(not dark).lower()}]", state="attached")
        wait_until(lambda: _contrast(page, ".carrel-panel .carrel-note") >= 4.5, f"enough contrast with {theme}")


def _contrast(page: Page, selector: str) -> float:
    """Contrast of an element's text (WCAG 2, 1.4.3), its opacity counted in."""
    return float(
        page.evaluate(
            """selector => {
                const node = document.querySelector(selector);
                const panel = node.closest('.carrel-panel');
                const numbers = text => (text.match(/[\\d.]+/g) || []).map(Number);
                const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
                const rgb = color => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
                    const d = canvas.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
                const back = rgb(getComputedStyle(panel).backgroundColor);
                const front = rgb(getComputedStyle(node).color);
                const alpha = front[3] * Number(getComputedStyle(node).opacity);
                const mixed = [0, 1, 2].map(i => front[i] * alpha + back[i] * (1 - alpha));
                const light = c => { const [r, g, b] = c.slice(0, 3).map(v => v / 255)
                    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
                const [one, other] = [light(mixed), light(back)];
                return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
            }""",
            selector,
        )
    )


def test_warnings_are_notifications(seat: Seat, window: Window) -> None:
    page = window.page()
    page.goto(seat.link())
    expect(page.locator(STATUS)).to_have_text("no GPU held (simulated)")
    seat.broker.notice("warning", "Your hold on GPU 0 ends in 5 min.")
    expect(page.get_by_text("Your hold on GPU 0 ends in 5 min.").first).to_be_visible()


class SmallLab:
    """Answers what a session asks its lab."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append((scope["path"], dict(scope["headers"])[b"authorization"].decode()))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps(self.answer).encode()})


def test_an_end_that_comes_near_is_told_once(chromium: Browser) -> None:
    now = datetime.now(UTC)
    job = {"name": "its name", "started_at": (now - timedelta(minutes=40)).isoformat(), "resources": {"time": 3600}}
    switch = Switch()
    lab = switch.target = SmallLab({"job": job, "idle_end": (now + timedelta(minutes=4)).isoformat()})
    with socket.create_server(("127.0.0.1", 0)) as listener, serving(switch, listener):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with a_jupyter(variables={"CARREL_URL": url}) as jupyter, a_front() as front:
            label = front.sessions.add(jupyter.session)
            page = chromium.new_page()
            page.goto(front.link(label))
            expect(page.get_by_text("The session ends in 20 min.")).to_have_count(1, timeout=PATIENCE)
            expect(page.get_by_text("Nobody uses this session: it ends in 4 min.")).to_have_count(1)
            page.locator(STATUS).click()
            panel = page.get_by_role("region", name="GPUs", exact=True)
            expect(panel.get_by_role("link", name="7")).to_have_attribute("href", f"{url}/jobs/7")
            page.close()
            bearer = f"Bearer {jupyter.session.token}"
            asked = {"/api/v1/sessions/7", "/api/v1/announcements", "/api/v1/sessions"}
            assert set(lab.asked) == {(path, bearer) for path in asked}


WAITS = "# carrel: gpus=1\nprint('at last')"
#: Words of the first output that stand on two lines.
BROKEN_WORDS = """() => {
  const text = document.querySelector('.jp-NotebookPanel .jp-OutputArea-output pre');
  const walker = document.createTreeWalker(text, NodeFilter.SHOW_TEXT);
  const broken = [];
  let node, words = 0;
  while ((node = walker.nextNode())) {
    for (const found of node.data.matchAll(/[^ \\s]+/g)) {
      const range = document.createRange();
      range.setStart(node, found.index);
      range.setEnd(node, found.index + found[0].length);
      words += 1;
      if (new Set([...range.getClientRects()].map(one => one.top)).size > 1) {
        broken.push(found[0]);
      }
    }
  }
  return words ? broken : ['nothing is there'];
}"""
#: Puts out half of its lines, and the others when the test says so.
SLOW = """
import pathlib, time
for step in range({steps}):
    while step == {steps} // 2 and not pathlib.Path({go!r}).exists():
        time.sleep(0.02)
    print('step', step, flush=True)
    time.sleep(0.02)
print('over')"""


@pytest.fixture
def port() -> Iterator[int]:
    with kept_port() as number:
        yield number


def test_the_same_tab_misses_nothing_while_the_lab_is_restarted(seat: Seat, window: Window, port: int, tmp_path: Path) -> None:
    page = window.page()
    go = tmp_path / "go"
    secret = b"k" * 32
    with a_front(secret=secret, port=port) as front:
        label = front.sessions.add(seat.jupyter.session)
        window.label = label
        name = notebook(seat.jupyter.files, SLOW.format(steps=12, go=str(go)))
        page.goto(front.link(label, f"/lab/tree/{name}?reset"))
        is_ready(page)
        run_first(page)
        expect(outputs(page)).to_contain_text("step 1", timeout=PATIENCE)
        tokens = front.sessions.tokens
    # Nobody answers on its address now, and the cell goes on.
    go.touch()
    server = seat.jupyter.http()
    (kernel,) = (one["kernel"]["id"] for one in server.get("/api/sessions").json() if one["path"] == name)
    wait_until(lambda: server.get(f"/api/kernels/{kernel}").json()["execution_state"] == "idle", "its end")
    server.close()
    expect(outputs(page)).not_to_contain_text("over")
    expect(page.locator(STATUS)).to_have_text("The lab does not answer", timeout=PATIENCE)
    with a_front(secret=secret, port=port, tokens=tokens) as front:
        front.sessions.add(seat.jupyter.session)
        # What was on its way when the connection broke is asked for when the cell is over.
        wanted = " ".join([*(f"step {step}" for step in range(12)), "over"])
        wait_until(lambda: " ".join(outputs(page).inner_text().split()) == wanted, lambda: outputs(page).inner_text())
        expect(page.locator(STATUS)).not_to_have_text("The lab does not answer", timeout=PATIENCE)
        expect(page.locator(".jp-Dialog")).to_have_count(0)
        page.close()
    window.complaints.clear()  # connections that were refused


def test_a_tab_that_is_opened_anew_shows_what_was_put_out_meanwhile(seat: Seat, window: Window, tmp_path: Path) -> None:
    go = tmp_path / "go"
    name = notebook(seat.jupyter.files, SLOW.format(steps=16, go=str(go)), "1 + 1")
    first = window.page()
    first.goto(seat.link(f"/lab/tree/{name}?reset"))
    is_ready(first)
    run_first(first)
    expect(outputs(first)).to_contain_text("step 1", timeout=PATIENCE)
    first.close(run_before_unload=False)
    second = window.page()
    second.goto(seat.front.origin(seat.label) + f"/lab/tree/{name}?reset")
    expect(outputs(second)).to_contain_text("step 2", timeout=PATIENCE)
    expect(prompt(second)).to_have_text("[*]:")
    go.touch()
    expect(outputs(second)).to_contain_text("over", timeout=PATIENCE)
    expect(prompt(second)).to_have_text("[1]:")
    said = [line for line in outputs(second).inner_text().splitlines() if line]
    assert said == [*(f"step {step}" for step in range(16)), "over"]
    second.close()
    # And one that comes when all is over.
    third = window.page()
    third.goto(seat.front.origin(seat.label) + f"/lab/tree/{name}?reset")
    expect(outputs(third)).to_contain_text("over", timeout=PATIENCE)
    expect(prompt(third)).to_have_text("[1]:")


def test_a_page_that_is_reloaded_while_a_cell_waits_shows_the_line_again(seat: Seat, window: Window) -> None:
    page = window.page()
    page.goto(seat.link(f"/lab/tree/{notebook(seat.jupyter.files, WAITS)}?reset"))
    is_ready(page)
    run_first(page)
    wait_until(lambda: seat.broker.waiting, "the cell to wait")
    seat.broker.queue("waiting for a GPU: 1st in line (a cell of another session computes)")
    expect(outputs(page)).to_contain_text("1st in line", timeout=PATIENCE)
    page.set_viewport_size({"width": 500, "height": 900})
    assert page.evaluate(BROKEN_WORDS) == []
    page.set_viewport_size({"width": 1400, "height": 900})
    for _ in range(2):
        page.reload()
        expect(outputs(page)).to_contain_text("1st in line", timeout=PATIENCE)
        expect(prompt(page)).to_have_text("[*]:")
    seat.broker.queue("waiting for a GPU: 1st in line, any moment now (a cell of another session computes)")
    expect(outputs(page)).to_contain_text("any moment now", timeout=PATIENCE)
    seat.broker.grant()
    expect(outputs(page)).to_contain_text("at last", timeout=PATIENCE)
    expect(outputs(page)).to_contain_text("for GPU 0")
    expect(outputs(page)).not_to_contain_text("in line")
    expect(prompt(page)).to_have_text("[1]:")


def test_what_was_saved_after_the_run_is_not_overwritten(seat: Seat, window: Window) -> None:
    name = notebook(seat.jupyter.files, "print('made')")
    page = window.page()
    page.goto(seat.link(f"/lab/tree/{name}?reset"))
    is_ready(page)
    run_first(page)
    expect(outputs(page)).to_have_text("made", timeout=PATIENCE)
    # The output comes before the kernel says that it is done; what is saved in between has no count.
    expect(page.locator(".jp-InputArea-prompt").first).to_have_text("[1]:", timeout=PATIENCE)
    page.get_by_role("button", name="Save and create checkpoint").click()  # keys go to whoever has the focus by then
    wait_until(lambda: '"execution_count": 1' in (seat.jupyter.files / name).read_text(), "the run to be saved")
    choose(page, "Edit", "Clear Outputs of All Cells")
    page.get_by_role("button", name="Save and create checkpoint").click()  # keys go to whoever has the focus by then
    expect(outputs(page)).to_be_empty()
    wait_until(lambda: '"execution_count": 1' not in (seat.jupyter.files / name).read_text(), "it to be saved")
    page.reload()
    is_ready(page)
    page.wait_for_timeout(1500)
    expect(outputs(page)).to_be_empty()


def test_a_button_makes_a_task_of_the_notebook(seat: Seat, window: Window) -> None:
    page = window.page()
    page.goto(seat.link(f"/lab/tree/{notebook(seat.jupyter.files, 'print(1)', 'print(2)')}?reset"))
    is_ready(page)
    page.get_by_role("button", name="Promote to task").click()
    page.get_by_role("dialog").get_by_role("button", name="Promote").click()
    expect(page.get_by_text("Run it: carrel run").first).to_be_visible(timeout=PATIENCE)


def test_a_terminal_session_shows_a_terminal(chromium: Browser) -> None:
    with a_jupyter(kind="terminal") as jupyter, a_front() as front:
        label = front.sessions.add(jupyter.session)
        page = chromium.new_page()
        page.goto(front.link(label, "/terminals/1"))
        page.wait_for_selector(".jp-Terminal .xterm", timeout=PATIENCE)
        expect(page.locator(STATUS)).to_have_text("no broker")
        page.close()


@pytest.fixture
def neighbour(seat: Seat) -> Iterator[tuple[str, SmallServer]]:
    """Another session of the same user, whose cookie the browser has too."""
    server = SmallServer()
    with a_unix_server(server) as path:
        yield seat.front.sessions.add(a_session(path, job_id=88, token="carrel-job.88.1.x")), server


def test_a_notebooks_page_reaches_neither_the_portal_nor_other_sessions(
    seat: Seat, chromium: Browser, neighbour: tuple[str, SmallServer]
) -> None:
    other, server = neighbour
    context = chromium.new_context()
    page = context.new_page()
    page.goto(seat.front.link(other, "/x"))
    assert "carrel-session" in {cookie["name"] for cookie in context.cookies(seat.front.origin(other))}
    assert "/x" in server.paths
    seen = server.paths.count("/x")
    page.goto(seat.link())
    page.wait_for_selector(STATUS, timeout=PATIENCE)
    portal = f"http://localhost:{seat.front.port}"
    tries = """async ([target, socket]) => {
        const told = {};
        const attempt = async (name, work, patience = 60000) => {
            const late = new Promise(resolve => setTimeout(resolve, patience, 'no answer'));
            try { told[name] = String(await Promise.race([work(), late])); } catch (error) { told[name] = 'stopped'; }
        };
        for (const method of ['GET', 'POST']) {
            await attempt(`${method} cors`, async () =>
                (await fetch(target + '/x', { method, credentials: 'include' })).text());
            await attempt(`${method} no-cors`, async () =>
                (await fetch(target + '/x', { method, mode: 'no-cors', credentials: 'include' })).type);
        }
        await attempt('websocket', () => new Promise((resolve, reject) => {
            const one = new WebSocket(socket + '/say');
            one.onmessage = event => resolve(event.data);
            one.onerror = () => reject(new Error());
        }));
        await attempt('frame', () => new Promise((resolve, reject) => {
            const frame = document.createElement('iframe');
            frame.src = target + '/x';
            frame.onload = () => { try { resolve(frame.contentDocument.body.textContent); } catch (error) { reject(error); } };
            document.body.append(frame);
        }), 3000);
        await attempt('form', () => new Promise(resolve => {
            const frame = Object.assign(document.createElement('iframe'), { name: 'inner' });
            document.body.append(frame);
            const form = document.createElement('form');
            Object.assign(form, { action: target + '/x', method: 'post', target: 'inner' });
            document.body.append(form);
            frame.onload = () => { resolve('sent'); };
            form.submit();
        }), 3000);
        return told;
    }"""
    told = page.evaluate(tries, [seat.front.origin(other), f"ws://{seat.front.host(other)}"])
    assert told["GET cors"] == told["POST cors"] == told["websocket"] == "stopped"
    assert "x-carrel-identity" not in json.dumps(told)
    assert server.paths.count("/x") == seen  # not one of them got as far as the other session
    assert "/say" not in server.paths
    told = page.evaluate(tries, [portal, portal.replace("http", "ws")])
    assert "the lab" not in {told["GET cors"], told["POST cors"], told["frame"]}
    context.close()

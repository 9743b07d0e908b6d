"""Outputs in the browser: shown in their place, and nothing of them runs."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

import pytest
from playwright.sync_api import expect
from portal_site import Site
from test_portal_pages import HOSTILE

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import StoredFile
from carrel.lab.portal.metric_plots import plots_of
from carrel.wire.v1 import MetricsView
from carrel.wire.v1.comparison import MetricView
from support.chromium import a_chromium

#: The smallest picture.
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
BREAKS = "parent.broken = true; document.title = 'broken'"
SVG = f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>{BREAKS}</script></svg>'
HTML = f"<h1>Report</h1><script>{BREAKS}</script><img src=x onerror='parent.broken=true'>"


def notebook(*outputs: Mapping[str, object]) -> bytes:
    cells = [{"cell_type": "markdown", "source": [HOSTILE]}, {"cell_type": "code", "source": "plot()", "outputs": list(outputs)}]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).encode()


def ended(site: Site, files: Mapping[str, bytes], **fields: object) -> int:
    job = site.submit("ada", **fields)
    site.rig.engine.run(job)
    stored = [StoredFile(path=path, size=len(data), digest=site.rig.store_blob(data)) for path, data in sorted(files.items())]
    site.rig.engine.end(job, outputs=tuple(stored))
    site.rig.wait(job, JobState.COMPLETED)
    return job


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("outputs/log.txt", f"{HOSTILE}\x1b[31mred\x1b[0m".encode(), "red</pre>"),
        ("outputs/table.csv", f"name,loss\n{HOSTILE},0.5\n".encode(), "<td>0.5</td>"),
        ("outputs/table.csv", b'"never closed', "never closed"),
        ("outputs/data.json", json.dumps({"a": HOSTILE}).encode(), "<pre"),
        ("outputs/model.pt", b"\x80\x02\0\0", "It is no text"),
        ("outputs/big.txt", b"x" * 300_000, "These are its first 256 KiB."),
        ("outputs/run.ipynb", notebook({"output_type": "stream", "text": ["a\rb ", HOSTILE]}), "b &lt;script&gt;"),
        ("outputs/run.ipynb", notebook({"output_type": "error", "traceback": ["\x1b[31mE\x1b[0m: no"]}), "E: no</pre>"),
        (
            "outputs/run.ipynb",
            notebook({"output_type": "display_data", "data": {"text/html": HTML, "text/plain": "a table"}}),
            "a table</pre>",
        ),
        (
            "outputs/run.ipynb",
            notebook({"output_type": "display_data", "data": {"image/png": base64.b64encode(PNG).decode()}}),
            'src="data:image/png;base64,iVBOR',
        ),
        ("outputs/run.ipynb", notebook({"output_type": "display_data", "data": {"image/png": '"><b>'}}), "Not shown: image/png"),
        ("outputs/run.ipynb", b'{"cells": 3}', "cells"),
        ("outputs/run.ipynb", b"{}", "{}</pre>"),
        ("outputs/run.ipynb", json.dumps({"cells": [{"source": "half: \ud800"}]}).encode(), "half: ?</pre>"),
        ("outputs/run.ipynb", b'{"cells": [' + b"[]," * 600_000 + b"[]]}", "These are its first 256 KiB."),
        ("outputs/run.ipynb", notebook(*[{"output_type": "stream", "text": "a"}] * 3000), "first 2000 cells and outputs"),
        (f"outputs/{HOSTILE}.txt", b"named", "named</pre>"),
    ],
)  # fmt: skip
def test_what_is_no_picture_is_shown_as_text(site: Site, path: str, content: bytes, said: str) -> None:
    job = ended(site, {path: content})
    with site.browser("ada") as http:
        page = http.get(f"{site.url}/jobs/{job}/view/{path}")
        assert page.status_code == 200
        assert said in page.text
        assert HOSTILE not in page.text
        assert HOSTILE not in http.get(f"{site.url}/jobs/{job}").text


def test_only_who_may_read_a_job_sees_its_outputs(site: Site) -> None:
    job = ended(site, {"outputs/plot.png": PNG, "outputs/notes.txt": b"private"})
    with site.browser("bob") as http:
        for page in ("view/outputs/notes.txt", "shown/outputs/plot.png", "metrics"):
            assert http.get(f"{site.url}/jobs/{job}/{page}").status_code == 404
    with site.browser("ada") as http:
        assert http.get(f"{site.url}/jobs/{job}/shown/outputs/notes.txt").status_code == 404, "a text is not shown as itself"
        assert http.get(f"{site.url}/jobs/{job}/view/outputs/none.txt").status_code == 404
        assert "This lab has no tracking server" in http.get(f"{site.url}/jobs/{job}/metrics").text


@pytest.mark.gate
@pytest.mark.browser
def test_pictures_and_pages_are_seen_and_nothing_in_them_runs(site: Site) -> None:
    job = ended(site, {"outputs/plot.png": PNG, "outputs/drawn.svg": SVG.encode(), "outputs/report.html": HTML.encode()})
    with a_chromium() as browser:
        page = browser.new_page()
        page.goto(site.link("ada"))
        page.goto(f"{site.url}/jobs/{job}")
        picture = page.locator(".pictures img[alt='outputs/plot.png']")
        expect(picture).to_be_visible()
        assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
        page.get_by_role("link", name="outputs/report.html", exact=True).click()
        expect(page.frame_locator("iframe").get_by_role("heading", name="Report")).to_be_visible()
        for address in (
            f"/jobs/{job}/view/outputs/report.html",
            f"/jobs/{job}/shown/outputs/report.html",
            f"/jobs/{job}/shown/outputs/drawn.svg",
        ):
            page.goto(site.url + address)
            assert page.evaluate("window.broken") is None
            assert page.title() != "broken"
        # Also what is opened by itself is in an origin of its own: the session's cookie and pages are not within its reach.
        page.goto(f"{site.url}/jobs/{job}/shown/outputs/report.html")
        assert page.evaluate("self.origin") == "null"
        page.goto(f"{site.url}/jobs/{job}/view/outputs/drawn.svg")
        page.get_by_role("link", name="plot.png →").click()
        expect(page.get_by_role("heading", name="outputs/plot.png")).to_be_visible()


def test_plots_of_metrics() -> None:
    metrics = {
        "loss": MetricView(last="0.5", steps=[0, 1, 2], values=["2.0", "nan", "0.5"]),
        "flat": MetricView(last="1.0", steps=[0, 1], values=["1.0", "1.0"]),
        "once": MetricView(last="3.0", steps=[0], values=["3.0"]),
        "long": MetricView(last="4.0"),
        "endless": MetricView(last="inf", steps=[0, 1], values=["inf", "inf"]),
        "many": MetricView(last="9.0", steps=list(range(10_000)), values=["1.0"] * 9_999 + ["9.0"]),
    }
    plots = {plot.name: plot for plot in plots_of(MetricsView(metrics=metrics))}
    assert plots["loss"].path == "M6.0 6.0L294.0 114.0"
    assert (plots["loss"].low, plots["loss"].high, plots["loss"].last) == ("0.5", "2", "0.5")
    assert plots["flat"].path == "M6.0 60.0L294.0 60.0"
    assert [plots[name].path for name in ("once", "long", "endless")] == ["", "", ""]
    assert plots["many"].path.endswith("L294.0 6.0"), "the last point is there"
    assert plots["many"].path.count("L") < 400


def test_a_job_is_run_again_with_changes(site: Site) -> None:
    job = ended(site, {}, name="fit", resources={"gpus": 1, "memory": "3G", "time": "90m"}, parameters={})
    task = site.rig.lab.task(site.rig.caller("ada"), job)
    with site.browser("ada") as http:
        assert f'href="/tasks/new?job={job}"' in http.get(f"{site.url}/jobs/{job}").text
        page = http.get(f"{site.url}/tasks/new?job={job}").text
        for name, value in {"name": "fit", "gpus": "1", "memory": "3G", "time": "90m"}.items():
            assert f'name="{name}" value="{value}"' in page
        assert task.snapshot in page
    with site.browser("bob") as http:
        assert http.get(f"{site.url}/tasks/new?job={job}").status_code == 404

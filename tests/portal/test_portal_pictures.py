"""The pictures in the documentation: `make pictures` takes them, and a picture whose page has changed fails here."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from busy_lab import NOW, SCRIPT, a_busy_lab
from fabric_lab import a_lab_with_machines
from PIL import Image
from playwright.sync_api import Page, expect

from support.chromium import a_chromium

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Bytes of a picture and of all of them, and how many there are, at most.
ONE, ALL, MOST = 60_000, 600_000, 13
#: Colours of a picture: the pages have few, and a palette takes a fifth of the bytes.
COLOURS = 200


@dataclass(frozen=True, kw_only=True)
class Picture:
    name: str
    #: Where the page is, with names of fields of `BusyLab`.
    path: str
    #: Of the first and second level. When they change, look at the page, write the new ones here, and `make pictures`.
    headings: Sequence[str]
    user: str = "ada"
    width: int = 1280
    height: int = 860
    scheme: str = "light"
    #: Which of `LABS` it is taken of.
    lab: str = "busy"
    act: Callable[[Page], None] = lambda _page: None


def ask_when(page: Page) -> None:
    page.get_by_label("Paste a script").fill(SCRIPT)
    page.get_by_role("button", name="When would it start?").click()
    page.get_by_text("The command that does the same").click()


def name_the_home(page: Page) -> None:
    """The directory of a test is no example."""
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    page.locator("dd code").first.evaluate("code => { code.textContent = '/srv/carrel/files/ada'; }")


def name_the_data(page: Page) -> None:
    """The directory of a test is no example."""
    expect(page.locator(".plots li")).to_have_count(2)
    page.locator("section.card p code").nth(1).evaluate("code => { code.textContent = '/srv/carrel/challenges/eeg/train'; }")


def see_metrics(page: Page) -> None:
    expect(page.locator(".plots li")).to_have_count(3)


FRONT = ["Free for you now", "Jobs", "Devices", "bench"]
JOB = ["resnet-cifar", "Course", "Log", "Metrics", "Attempts", "Task"]
CHALLENGE = [
    "Find seizures in EEG",
    "Your team: The Waves",
    "Phases",
    "Your submissions",
    "Board: development",
    "Notices",
    "Ask the organisers",
    "Overview",
    "Data",
    "Rules",
]
GPUS = ["GPUs", "The last hour", "Waiting for a GPU", "Notebooks that have used a GPU", "The last week"]
PICTURES = (
    Picture(name="lab", path="/", headings=FRONT, height=1000),
    Picture(name="lab-narrow", path="/", headings=FRONT, width=390, height=844),
    Picture(
        name="new-task",
        path="/tasks/new",
        headings=["New task", "Code", "What it runs and asks for"],
        height=1000,
        act=ask_when,
    ),
    Picture(name="job", path="/jobs/{training}", headings=JOB, height=1240, act=see_metrics),
    Picture(name="job-dark", path="/jobs/{training}", headings=JOB, scheme="dark", width=390, height=844),
    Picture(
        name="output",
        path="/jobs/{finished}/view/outputs/executed.ipynb",
        headings=["outputs/executed.ipynb"],
    ),
    Picture(
        name="notebooks",
        path="/notebooks",
        headings=["Notebooks", "protein-features 13", "Start another", "Run one of yours as a task"],
        height=760,
        act=name_the_home,
    ),
    Picture(name="gpus", path="/gpus", headings=GPUS, height=1000),
    Picture(
        name="machines",
        path="/machines",
        headings=["Machines from parts", "Your machines", "The fabric"],
        lab="fabric",
        height=1180,
    ),
    Picture(
        name="sweep",
        path="/sweeps/{sweep}",
        headings=["digits-sweep", "Parameters and loss", "The best: trial 6", "Trials"],
        height=1000,
    ),
    Picture(
        name="administration",
        path="/administration",
        user="root",
        headings=["Administration", "Users", "Machines", "Reservations", "Announcements", "What was done"],
        height=1000,
    ),
    Picture(name="challenge", path="/challenges/eeg", headings=CHALLENGE, height=1240, act=name_the_data),
    Picture(
        name="organise",
        path="/challenges/eeg/organise",
        user="root",
        headings=[
            "Find seizures in EEG",
            "Announce",
            "Questions",
            "Teams",
            "What failed, and why",
            "Likeness",
            "Report and export",
        ],
        height=1440,
    ),
)


LABS: Mapping[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "busy": a_busy_lab,
    "fabric": lambda place: a_lab_with_machines(place, NOW),
}


def small(shot: bytes) -> bytes:
    """The picture in the colours that it has most of."""
    data = io.BytesIO()
    with Image.open(io.BytesIO(shot)) as opened:
        picture = opened.convert("RGB")
    colours = sorted(picture.getcolors(picture.width * picture.height) or [], reverse=True)[:COLOURS]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in colours for part in cast("tuple[int, ...]", colour)])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(data, "PNG", optimize=True)
    return data.getvalue()


def named_in_docs() -> set[str]:
    pages = [ROOT / "README.md", *DOCS.glob("*.md")]
    return {name for page in pages for name in re.findall(r"\]\((?:docs/)?pictures/([\w-]+)\.png\)", page.read_text())}


@pytest.mark.quick
def test_each_picture_is_there_is_named_and_is_small() -> None:
    files = {file.stem: file.stat().st_size for file in (DOCS / "pictures").glob("*.png")}
    assert set(files) == {one.name for one in PICTURES}
    assert set(files) == named_in_docs()
    assert len(files) <= MOST
    assert max(files.values()) <= ONE
    assert sum(files.values()) <= ALL


def test_the_page_of_each_picture_has_the_headings_that_it_had(tmp_path: Path) -> None:
    seen = {}
    for kind, open_lab in LABS.items():
        with open_lab(tmp_path / kind) as lab, lab.site.browser("ada") as ada, lab.site.browser("root") as root:
            for one in (one for one in PICTURES if one.lab == kind):
                reader = root if one.user == "root" else ada
                page = reader.get(lab.site.url + one.path.format(**vars(lab))).text.partition("<main")[2]
                found = re.findall(r"<h[12][^>]*>(.*?)</h[12]>", page)
                seen[one.name] = [re.sub(r"<[^>]+>", "", text).split("\n")[0].strip() for text in found]
    changed = {one.name: seen[one.name] for one in PICTURES if seen[one.name] != list(one.headings)}
    assert not changed, "These pages have changed: look at them, see PICTURES, then make pictures."


@pytest.mark.browser
def test_pictures_are_taken(tmp_path: Path) -> None:
    """Into `CARREL_PICTURES` where it is set, as `make pictures` does."""
    place = Path(os.environ.get("CARREL_PICTURES") or tmp_path / "pictures")
    place.mkdir(exist_ok=True)
    for kind, open_lab in LABS.items():
        with open_lab(tmp_path / kind) as lab, a_chromium() as browser:
            for one in (one for one in PICTURES if one.lab == kind):
                context = browser.new_context(
                    viewport={"width": one.width, "height": one.height},
                    color_scheme=one.scheme,  # type: ignore[arg-type]
                    reduced_motion="reduce",
                    timezone_id="UTC",
                    locale="en-GB",
                )
                page = context.new_page()
                page.clock.set_fixed_time(NOW)
                page.goto(lab.site.link(one.user))
                page.goto(lab.site.url + one.path.format(**vars(lab)))
                one.act(page)
                page.evaluate("scrollTo(0, 0)")
                data = small(page.screenshot())
                assert len(data) <= ONE, one.name
                (place / f"{one.name}.png").write_bytes(data)
                context.close()

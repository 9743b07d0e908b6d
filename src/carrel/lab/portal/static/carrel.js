// Keeps pages fresh. Without it every page still shows everything; it only has to be loaded again.
"use strict";

const UNITS = [["d", 86400], ["h", 3600], ["min", 60]];

function ago(date) {
  const seconds = (Date.now() - date) / 1000, size = Math.abs(seconds);
  if (size > 7 * 86400) return date.toLocaleDateString();
  if (size < 10) return seconds >= 0 ? "just now" : "in a moment";
  const [unit, length] = UNITS.find(([, long]) => size >= long) || ["s", 1];
  const text = `${Math.floor(size / length)} ${unit}`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

function tellTimes(root) {
  for (const time of root.querySelectorAll("time")) {
    const date = new Date(time.dateTime);
    time.textContent = "exact" in time.dataset ? date.toLocaleString() : ago(date);
    time.title = date.toLocaleString();
  }
}

// Finds what has the focus again in a newer copy of its part: by what it is, where it leads, and which of its kind it is.
function twin(one, before, after) {
  const like = (other) => [other.tagName, other.getAttribute("href"), other.closest("form")?.getAttribute("action")].join();
  const alike = (part) => [...part.querySelectorAll(one.tagName)].filter((other) => like(other) === like(one));
  return alike(after)[alike(before).indexOf(one)];
}

// Replaces the parts of the page that changed, and nothing that the reader is busy with.
async function refresh(live) {
  const answer = await fetch(live.dataset.live, { headers: { Accept: "text/html" } });
  if (!answer.ok) return answer.status === 401 ? location.reload() : undefined;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  tellTimes(fresh);
  for (const part of live.querySelectorAll("[data-part]")) {
    const newer = fresh.querySelector(`[data-part="${part.dataset.part}"]`);
    if (!newer) continue;
    part.querySelectorAll("details").forEach((one, index) => newer.querySelectorAll("details")[index]?.toggleAttribute("open", one.open));
    if (newer.innerHTML === part.innerHTML) continue;
    const active = document.activeElement, focus = part.contains(active) && twin(active, part, newer), focusVisible = active?.matches(":focus-visible");
    const scrolled = [...part.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
    part.replaceChildren(...newer.childNodes);
    if (focus) focus.focus({ preventScroll: true, focusVisible });
    part.querySelectorAll(".scroll").forEach((box, index) => { box.scrollLeft = scrolled[index] ?? 0; });
  }
}

// At most one refresh at a time and one every 400 ms, however much happens; the last change is always shown.
function refresher(live) {
  let running = false, again = false;
  return async function changed() {
    if (running) { again = true; return; }
    running = true;
    do {
      again = false;
      try { await refresh(live); } catch { /* the stream tells when the lab is back */ }
      await new Promise((done) => setTimeout(done, 400));
    } while (again);
    running = false;
  };
}

const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])/g;
const MOST = 2_000_000;

class Log {
  constructor(root) {
    this.box = root.querySelector("[data-log]");
    this.text = root.querySelector("[data-log-text]");
    this.empty = root.querySelector("[data-log-empty]");
    this.attempt = Number(this.box.dataset.attempt);
    this.end = Number(this.box.dataset.end);
    const follow = root.querySelector("[data-follow]");
    this.follow = follow.querySelector("input");
    follow.hidden = false;
    const all = this.text.textContent, cut = all.lastIndexOf("\n") + 1;
    this.lines = document.createTextNode(all.slice(0, cut));
    this.last = document.createTextNode(all.slice(cut));
    this.raw = this.last.data;
    this.text.replaceChildren(this.lines, this.last);
    this.box.addEventListener("scroll", () => {
      this.follow.checked = this.box.scrollTop + this.box.clientHeight >= this.box.scrollHeight - 24;
    });
    this.follow.addEventListener("change", () => this.settle());
    this.settle();
  }

  add({ attempt, offset, text }) {
    if (attempt < this.attempt || (attempt === this.attempt && offset < this.end)) return; // the page had it already
    if (attempt > this.attempt) {
      this.put(`${this.text.textContent ? "\n" : ""}── attempt ${attempt} ──\n`);
      this.attempt = attempt;
    }
    this.end = offset;
    this.put(text);
  }

  // As a terminal would: a carriage return goes back to the beginning of the line.
  put(text) {
    this.raw += text;
    const held = this.raw.match(/\r?\x1b?\[?[0-9;?]*$/)[0]; // may be the first half of something
    const whole = this.raw.slice(0, this.raw.length - (held.startsWith("\r") || held.startsWith("\x1b") ? held.length : 0));
    const lines = whole.replace(ESCAPES, "").replace(/\r\n/g, "\n").split("\n");
    const shown = lines.map((line) => line.replace(/\r+$/, "").split("\r").pop());
    this.raw = lines.at(-1) + this.raw.slice(whole.length);
    this.last.data = shown.pop();
    if (shown.length) this.lines.appendData(shown.join("\n") + "\n");
    if (this.lines.length > MOST) {
      const cut = this.lines.data.indexOf("\n", this.lines.length - MOST / 2) + 1;
      this.lines.data = "The beginning is in the download.\n" + this.lines.data.slice(cut);
    }
    if (this.empty) this.empty.hidden = true;
    this.settle();
  }

  settle() {
    if (this.follow.checked) this.box.scrollTop = this.box.scrollHeight;
  }
}

function listen(live) {
  const pulse = document.querySelector("[data-pulse]");
  const changed = refresher(live);
  const log = "job" in live.dataset ? new Log(live) : null;
  const url = new URL(live.dataset.stream, location.href);
  url.searchParams.set("after", live.dataset.after);
  const stream = new EventSource(url);
  const say = (text, lost) => { pulse.hidden = !text; pulse.textContent = text; pulse.classList.toggle("lost", lost); };
  stream.onopen = () => say("Live", false);
  stream.onerror = () => {
    if (stream.readyState !== EventSource.CLOSED) { say("Reconnecting", true); return; }
    say("ended" in live.dataset ? "" : "Not live any more; load the page again.", true);
  };
  for (const type of ["state", "queue", "progress", "storage"]) {
    stream.addEventListener(type, (message) => {
      const { data } = JSON.parse(message.data);
      if (log && type === "state" && "exit_code" in data) { live.dataset.ended = ""; stream.close(); say("", false); }
      changed();
    });
  }
  if (log) stream.addEventListener("log", (message) => log.add(JSON.parse(message.data).data));
  addEventListener("pagehide", () => stream.close());
}

// What no event tells of is asked for again, as long as somebody looks.
function watch(live) {
  const changed = refresher(live), pulse = document.querySelector("[data-pulse]");
  if (pulse && !live.dataset.stream) { pulse.hidden = false; pulse.textContent = "Live"; }
  setInterval(() => { if (!document.hidden && live.querySelector("[data-again]")) changed(); }, 1000);
}

// A part that takes a moment comes by itself, and again while what it tells of goes on.
async function fill(box) {
  try {
    const answer = await fetch(box.dataset.from, { headers: { Accept: "text/html" } });
    if (answer.ok) {
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      box.replaceChildren(...fresh.body.childNodes);
    }
  } catch { /* the link that stands here leads to the same */ }
  if (box.querySelector("[data-again]")) setTimeout(() => fill(box), document.hidden ? 30_000 : 5_000);
}

// A session that the reader has just started is gone to as soon as it answers.
new MutationObserver(() => {
  const door = document.querySelector("form[data-go]");
  if (door && !door.dataset.gone) { door.dataset.gone = "yes"; door.submit(); }
}).observe(document.documentElement, { childList: true, subtree: true });

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});
// A page that comes back from the browser's memory has no stream: a fresh one has.
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
tellTimes(document);
setInterval(() => tellTimes(document), 15_000);
for (const live of document.querySelectorAll("[data-stream]")) if (!("ended" in live.dataset)) listen(live);
for (const live of document.querySelectorAll("[data-live]")) watch(live);
for (const box of document.querySelectorAll("[data-from]")) fill(box);
for (const box of document.querySelectorAll("[data-log]")) box.scrollTop = box.scrollHeight;

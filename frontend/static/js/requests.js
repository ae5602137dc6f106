// The list of requests: filters that apply at once, a drawer for one request with a URL of its own,
// and keyboard navigation of the rows.
import { fetched } from "./loading.js";

const drawer = document.getElementById("request");
const form = document.querySelector(".requests-filter");
const beside = matchMedia("(min-width: 1200px)"); // the drawer leaves the list usable
const here = () => location.pathname + location.search;

const MOST_HELD = 500;
const MOST_ADDED = 500;

let list = here();
let asking = null;
let current = ""; // the id of the row that is open

const links = () => [...document.querySelectorAll(".requests tbody th a")];
const currentLink = () => document.getElementById(current)?.querySelector("th a");

function mark(row) {
  document.querySelector(".requests tr[aria-current]")?.removeAttribute("aria-current");
  row?.setAttribute("aria-current", "true");
  current = row?.id ?? "";
}

// Shows the request that was clicked last; further clicks on it do not fetch it again.
async function open(link) {
  if (asking?.href === link.href) return;
  asking?.abort();
  const ours = (asking = Object.assign(new AbortController(), { href: link.href }));
  let html;
  try {
    const answer = await fetched(link.href, { headers: { "HX-Request": "true" }, signal: ours.signal });
    html = answer.status === 200 && (await answer.text());
  } catch (error) {
    if (error.name === "AbortError") return;
  }
  asking = null;
  if (!html) return location.assign(link.href); // signed out, not found or unreachable: that page says so
  const inside = drawer.contains(document.activeElement);
  drawer.innerHTML = html;
  htmx.process(drawer);
  drawer.scrollTop = 0;
  mark(link.closest("tr"));
  if (drawer.open) {
    history.replaceState({ drawer: true }, "", link.href);
    if (inside) drawer.querySelector("[data-closes]").focus();
  } else {
    beside.matches ? drawer.show() : drawer.showModal();
    history.pushState({ drawer: true }, "", link.href);
    dispatchEvent(new Event("resize")); // the table has less room
  }
}

// Moves by this many rows from the one that is open, or has the focus.
function step(by) {
  const all = links();
  const at = all.indexOf(drawer.open ? currentLink() : document.activeElement.closest?.("tr")?.querySelector("th a"));
  const link = all[at < 0 ? 0 : at + by];
  if (!link) return;
  if (drawer.open) {
    link.scrollIntoView({ block: "nearest" });
    open(link);
  } else {
    link.focus();
  }
}

// A click anywhere in a row, unless it selects text or is meant for a new tab.
document.addEventListener("click", (event) => {
  const steps = event.target.closest("[data-step]");
  if (steps) return step(Number(steps.dataset.step));
  const row = event.target.closest(".requests tbody tr");
  const link = row?.querySelector("th a");
  const other = event.target.closest("a, button");
  if (!link || !drawer || (other && other !== link) || event.defaultPrevented) return;
  if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (!other && String(getSelection())) return;
  event.preventDefault();
  open(link);
});

const STEPS = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 };
document.addEventListener("keydown", (event) => {
  if (!drawer || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const elsewhere = document.querySelector("dialog[open]:not(#request)");
  if (elsewhere || event.target.closest?.("input, textarea, select, details[open]")) return;
  if (event.key === "Escape" && drawer.open) {
    event.preventDefault();
    return drawer.close();
  }
  const letter = event.key.length === 1;
  if (letter && localStorage.getItem("single-keys") === "off") return;
  if (!(event.key in STEPS) || (!letter && !event.target.closest?.(".requests"))) return;
  event.preventDefault();
  step(STEPS[event.key]);
});

drawer?.addEventListener("close", () => {
  asking?.abort();
  asking = null;
  drawer.replaceChildren();
  currentLink()?.focus();
  mark(null);
  if (history.state?.drawer) history.back();
  dispatchEvent(new Event("resize"));
});
drawer?.addEventListener("click", (event) => {
  if (event.target === drawer && !beside.matches) drawer.close(); // its backdrop
});
addEventListener("popstate", (event) => {
  if (event.state?.drawer) location.reload();
  else if (drawer?.open) drawer.close();
  else if (here() !== list) location.reload();
});

// Empty filters stay out of the URL.
form?.addEventListener("htmx:configRequest", ({ detail }) => {
  for (const [name, value] of [...detail.formData]) if (!value) detail.formData.delete(name);
});
document.addEventListener("htmx:afterSettle", ({ target }) => {
  if (drawer.contains(target)) return; // a part of the request that is open
  history.replaceState(null, "", list = here()); // else htmx would load the page anew on the way back
  if (drawer.open) mark(currentLink()?.closest("tr"));
  followTail();
});
// A view or a dataset is saved with the current filter.
for (const id of ["save-view", "save-dataset"]) {
  document.getElementById(id)?.addEventListener("submit", ({ target }) => {
    target.elements.query.value = list.split("?")[1] ?? "";
  });
}

let unfollow = null;
function followTail() {
  unfollow?.abort();
  document.dispatchEvent(new CustomEvent("hold", { detail: false }));
  unfollow = new AbortController();
  const tail = document.querySelector("live-part#tail");
  if (tail) follow(tail, unfollow.signal);
}
followTail();

// The tail: new rows go on top, unless it is paused, scrolled down, or a request is open.

async function follow(tail, signal) {
  await customElements.whenDefined("live-part");
  const [bar, pause, fresh, more] = ["tail-bar", "pause", "fresh", "more"].map((id) => document.getElementById(id));
  const refetch = tail.fetch.bind(tail);
  let held = [];
  let added = 0;
  let left = 0;
  let missed = false;
  let fetching = false;
  let begun = false;
  let paused = false;

  const isShown = (id) => document.getElementById(`r-${id}`) !== null;
  const waits = () => paused || drawer.open || tail.getBoundingClientRect().top < 0;

  // Called by the part: once for rows that came while the page was rendered, and whenever it missed some.
  tail.fetch = async () => {
    missed = true;
    if (begun || drawer.open) update();
    else fetchAll();
    begun = true;
  };

  function say() {
    fresh.hidden = !held.length && !(missed && waits());
    fresh.textContent = held.length && !missed ? `${held.length} new` : "Show new requests";
    more.textContent = left ? `and ${left} more that arrived too fast to show` : "";
  }

  function update() {
    if (!waits()) show();
    say();
  }

  // Rows that arrive meanwhile are held: the fetched page may not have them.
  async function fetchAll() {
    [fetching, missed, added, left] = [true, false, 0, 0];
    await refetch();
    fetching = false;
    if (tail.querySelector("tbody")) update();
  }

  function show() {
    if (fetching) return;
    const body = tail.querySelector("tbody");
    if (missed || (held.length && !body) || added + held.length > MOST_ADDED) return void fetchAll();
    for (const { id, html } of held) {
      if (isShown(id)) continue; // the page was fetched meanwhile
      const row = document.createElement("template");
      row.innerHTML = html.trim();
      row.content.firstChild.classList.add("new");
      body.prepend(row.content);
      added++;
    }
    held = [];
  }

  tail.addEventListener("live", ({ detail }) => {
    for (const row of detail.rows ?? []) {
      if (row.more) left += row.more;
      else if (!isShown(row.id) && !held.some((one) => one.id === row.id)) held.push(row);
    }
    if (held.length > MOST_HELD) [missed, held] = [true, []];
    update();
  });
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    document.dispatchEvent(new CustomEvent("hold", { detail: paused }));
    update();
  });
  fresh.addEventListener("click", () => {
    show();
    say();
    tail.closest(".panel").scrollIntoView();
  });
  for (const moved of ["scrollend", "popstate"]) addEventListener(moved, update, { signal });
  bar.hidden = false;
}

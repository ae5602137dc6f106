// The list of requests. A request opens in a drawer and has its own address.
const drawer = document.getElementById("request");
const here = () => location.pathname + location.search;
const list = here();

let opening = false;

// One at a time, also on a double click: htmx would queue the second and report it as done at once.
async function open(link) {
  if (opening || drawer.open) return;
  opening = true;
  try {
    await htmx.ajax("GET", link.href, { target: drawer, swap: "innerHTML" });
  } finally {
    opening = false;
  }
  if (!drawer.childElementCount) return location.assign(link.href);
  drawer.showModal();
  history.pushState({ drawer: true }, "", link.href);
}

// A click anywhere in a row, unless it selects text or is meant for a new tab.
document.addEventListener("click", (event) => {
  const row = event.target.closest(".requests tbody tr");
  const link = row?.querySelector("th a");
  const other = event.target.closest("a, button");
  if (!link || (other && other !== link) || event.defaultPrevented) return;
  if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (!other && String(getSelection())) return;
  event.preventDefault();
  open(link);
});

drawer?.addEventListener("close", () => {
  drawer.replaceChildren();
  if (history.state?.drawer) history.back();
});
drawer?.addEventListener("click", (event) => {
  if (event.target === drawer) drawer.close();
});
addEventListener("popstate", (event) => {
  if (event.state?.drawer) location.reload();
  else if (drawer?.open) drawer.close();
  else if (here() !== list) location.reload();
});

// The tail: new rows go on top, unless it is paused, scrolled down, or a request is open.
const MOST_HELD = 500;
const MOST_ADDED = 500;
const tail = document.querySelector("live-part#tail");
if (tail) follow(tail);

async function follow(tail) {
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

  // Called by the part: once for rows that came while the page was made, and whenever it missed some.
  tail.fetch = async () => {
    missed = true;
    if (begun || drawer.open) update();
    else fetchAll();
    begun = true;
  };

  function say() {
    fresh.hidden = !held.length && !(missed && waits());
    fresh.textContent = held.length && !missed ? `${held.length} new` : "Show what is new";
    more.textContent = left ? `and ${left} more, which came too fast to be shown` : "";
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
    bar.parentElement.scrollIntoView();
  });
  for (const moved of ["scrollend", "popstate"]) addEventListener(moved, update);
  bar.hidden = false;
}

// A sign of loading at the top of the page, when a page or an answer of the server takes long.
const AFTER_MS = 300; // what is faster needs no sign
const AT_MOST_MS = 30_000; // of a page that does not come, such as a download

const waits = new Set();
let sign = null;

function tell() {
  if (waits.size && !sign) {
    sign = document.createElement("p");
    sign.className = "loading-sign";
    sign.setAttribute("role", "status");
    document.body.append(sign);
    sign.append(Object.assign(document.createElement("span"), { className: "visually-hidden", textContent: "Loading" }));
  } else if (!waits.size) {
    sign?.remove();
    sign = null;
  }
}

// Show the sign from now on, if this takes long; returns what ends it.
export function loading() {
  const wait = {};
  const begins = setTimeout(() => tell(waits.add(wait)), AFTER_MS);
  return () => {
    clearTimeout(begins);
    waits.delete(wait);
    tell();
  };
}

// As `fetch`, with the sign while it takes long.
export async function fetched(...asked) {
  const end = loading();
  try {
    return await fetch(...asked);
  } finally {
    end();
  }
}

let leaving = () => {};

// A page was asked for. The sign goes with this page; it also ends when the page is shown again from the
// browser's cache.
function leaves() {
  leaving();
  const end = loading();
  const late = setTimeout(end, AT_MOST_MS);
  leaving = () => {
    clearTimeout(late);
    end();
  };
}
addEventListener("pageshow", () => leaving());

// Whether following this link replaces the page.
function replaces(link, event) {
  const other = event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey;
  const stays = link.target || link.hasAttribute("download") || link.getAttribute("href").startsWith("#");
  return !other && !stays && ["http:", "https:"].includes(link.protocol);
}

// Other listeners may keep the page: they are asked first, as these are the window's.
addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (link && !event.defaultPrevented && replaces(link, event)) leaves();
});
addEventListener("submit", (event) => {
  const { method, target } = event.target;
  if (!event.defaultPrevented && method !== "dialog" && !target) leaves();
});

// The requests of htmx.
const ends = new WeakMap();
document.addEventListener("htmx:beforeRequest", ({ detail }) => ends.set(detail.xhr, loading()));
document.addEventListener("htmx:afterRequest", ({ detail }) => ends.get(detail.xhr)?.());

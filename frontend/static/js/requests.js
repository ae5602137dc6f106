// The list of requests: one opens in a drawer, at an address of its own.
const drawer = document.getElementById("request");
const here = () => location.pathname + location.search;
const list = here();

async function open(link) {
  await htmx.ajax("GET", link.href, { target: drawer, swap: "innerHTML" });
  if (drawer.open) return;
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

// On every page: the theme, the menu on small screens, dialogs and copy buttons.
import { fetched } from "./loading.js";

function choose(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
}

// The menu on small screens; only signed-in users have one.
function openMenu(open) {
  document.getElementById("sidebar")?.toggleAttribute("data-open", open);
  document.querySelector("[data-opens=sidebar]")?.setAttribute("aria-expanded", String(open));
}

const FIELDS = "input:not([type=hidden], [type=radio]:not(:checked)):enabled, select:enabled, textarea:enabled";

// Opens a dialog with the focus on an invalid field, else on its first field; if it only confirms
// something that cannot be undone, on its Cancel button.
function show(dialog) {
  dialog.showModal();
  const places = ["[autofocus]", "[aria-invalid=true]", FIELDS, ".button.danger ~ [data-closes]"];
  places.map((place) => dialog.querySelector(place)).find(Boolean)?.focus();
}

// Fills a dialog that the rows of a table share, for the row whose button opens it.
function concern(dialog, { to, named, value }) {
  const form = dialog.querySelector("form");
  form.reset();
  form.setAttribute("action", to);
  for (const place of dialog.querySelectorAll("[data-named]")) place.textContent = named;
  for (const field of dialog.querySelectorAll("[data-value]")) {
    if (field.type === "radio") field.checked = field.value === value;
    else field.value = value;
  }
}

document.addEventListener("change", (event) => {
  if (event.target.id === "theme-choice") choose(event.target.value);
  if (event.target.id === "times-choice") {
    localStorage.setItem("times", event.target.value);
    tellZone();
    location.reload();
  }
});

// Opens a dialog whose form is fetched; its link leads to a page with the same form.
async function load(link) {
  const dialog = document.getElementById("loaded");
  try {
    const answer = await fetched(link.href, { headers: { "HX-Request": "true" } });
    if (answer.status !== 200) throw new Error(answer.statusText);
    dialog.innerHTML = await answer.text();
  } catch {
    return location.assign(link.href);
  }
  show(dialog);
}

document.addEventListener("click", (event) => {
  const loader = event.target.closest("[data-loads]");
  if (loader && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    load(loader);
    return;
  }
  const opener = event.target.closest("[data-opens]");
  if (opener) {
    event.preventDefault(); // without this script it leads to a page with the dialog open
    const target = document.getElementById(opener.dataset.opens);
    if (opener.dataset.to) concern(target, opener.dataset);
    if (target instanceof HTMLDialogElement) show(target);
    else openMenu(!target.hasAttribute("data-open"));
    closeMenus(null);
    return;
  }
  event.target.closest("[data-closes]")?.closest("dialog")?.close();
  event.target.closest("[data-dismisses]")?.parentElement.remove();
  if (!event.target.closest("#sidebar")) openMenu(false);
  closeMenus(event.target.closest("details.menu"));
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  openMenu(false);
  const menu = event.target.closest?.("details.menu[open]");
  if (menu) menu.querySelector("summary").focus();
  closeMenus(null);
});

// Menus of the sidebar: one is open at a time, and none after a click elsewhere.
function closeMenus(but) {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (menu !== but) menu.open = false;
}

// The tenant menu's search.
document.addEventListener("input", (event) => {
  const list = document.getElementById(event.target.dataset.narrows ?? "");
  const words = event.target.value.trim().toLowerCase();
  for (const one of list?.children ?? []) one.hidden = !one.textContent.toLowerCase().includes(words);
});

// A name that breaks its rule says so while it is typed.
document.addEventListener("input", ({ target }) => {
  if (!target.dataset.rule) return;
  const wrong = target.validity.patternMismatch;
  target.setAttribute("aria-invalid", String(wrong));
  document.getElementById(`${target.id}-wrong`).textContent = wrong ? target.dataset.rule : "";
});

// A slug is proposed from the name until it is edited.
const slugOf = (name) =>
  name.normalize("NFKD").toLowerCase().replace(/\p{M}/gu, "").replace(/[^a-z0-9]+/g, "-").slice(0, 63).replace(/^-|-$/g, "");

document.addEventListener("input", ({ target }) => {
  const slug = target.form?.querySelector(`[data-proposed-from="${CSS.escape(target.name)}"]`);
  if (slug && slug.value === (slug.dataset.proposed ?? "")) slug.value = slug.dataset.proposed = slugOf(target.value);
});

// The next user of this tab must not get these drafts.
document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-signs-out]")) return;
  document.documentElement.toggleAttribute("data-signing-out", true);
  sessionStorage.clear();
});

// Tells the server the time zone of this browser, or that UTC is preferred.
function tellZone() {
  const zone = localStorage.getItem("times") === "utc" ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone;
  document.cookie = `zone=${zone}; path=/; max-age=31536000; SameSite=Lax`;
}
tellZone();

// Tables that are wider than their container scroll in it; the others scroll with the page.
function measure() {
  for (const wrap of document.querySelectorAll(".table-wrap")) wrap.toggleAttribute("data-wide", wrap.scrollWidth > wrap.clientWidth);
}
for (const event of ["load", "resize", "live"]) addEventListener(event, measure);

class CopyButton extends HTMLElement {
  connectedCallback() {
    const button = this.querySelector("button");
    const label = button.textContent;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(this.querySelector("pre, code, input").textContent.trim());
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = label), 1500);
    });
  }
}
customElements.define("copy-button", CopyButton);

const theme = document.getElementById("theme-choice");
if (theme) theme.value = localStorage.getItem("theme") ?? "system";
const times = document.getElementById("times-choice");
if (times) times.value = localStorage.getItem("times") ?? "local";
// A dialog that the server opened to show errors; it gets the focus here.
for (const dialog of document.querySelectorAll("dialog[open]")) {
  dialog.close();
  show(dialog);
}
// Opens the dialog that the URL's fragment names, as in the links of the palette's actions.
function openNamed() {
  const name = location.hash.slice(1);
  if (!name) return;
  const [opener, dialog] = [document.querySelector(`[data-opens="${CSS.escape(name)}"]:not([data-to])`), document.getElementById(name)];
  if (!opener || !(dialog instanceof HTMLDialogElement) || document.querySelector("dialog:modal")) return;
  show(dialog);
  history.replaceState(history.state, "", location.pathname + location.search); // a reload does not open it again
}
addEventListener("hashchange", openNamed);
openNamed();
// Where the focus goes on a page: to an invalid field, else to what is shown only once; on a sign-in
// page, to the first empty field.
function place() {
  const main = document.querySelector("main");
  const entrance = [...(main?.matches(".entrance") ? main.querySelectorAll(FIELDS) : [])];
  const wrong = main?.querySelector("[aria-invalid=true]");
  return wrong ?? main?.querySelector("[data-shown-once] button") ?? entrance.find((field) => !field.value) ?? entrance[0];
}
if (!document.querySelector("dialog[open]")) place()?.focus();

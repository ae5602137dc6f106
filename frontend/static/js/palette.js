// The command palette and keyboard shortcuts. Single-key shortcuts can be switched off.
const SETTING = "single-keys";
const GO_MS = 1500; // between two key presses, by their own time stamps: the page may be slow to handle them
const PAUSE_MS = 120;

const palette = document.getElementById("palette");
const shortcuts = document.getElementById("shortcuts");
const words = palette.querySelector("input");
const list = palette.querySelector("[role=listbox]");
const status = palette.querySelector("[role=status]");
const setting = shortcuts.querySelector("[data-single-keys]");

let asked = null;
let pause = 0;
let goUntil = 0;
let looking = false; // the list is older than the typed text
let entered = false; // Enter was pressed while looking

// The palette: a combobox with options from the server

function options() {
  return [...list.children];
}

function choose(option) {
  for (const one of options()) one.setAttribute("aria-selected", String(one === option));
  if (option) words.setAttribute("aria-activedescendant", option.id);
  else words.removeAttribute("aria-activedescendant");
  option?.scrollIntoView({ block: "nearest" });
}

function chosen() {
  return list.querySelector("[aria-selected=true]");
}

// What needs no page of its own: shown after what the server found, once something is typed.
const HERE = [
  { title: "Switch theme", act: switchTheme },
  { title: "Sign out", act: () => document.querySelector("form[data-signs-out]").requestSubmit() },
];

function switchTheme() {
  const choice = document.getElementById("theme-choice");
  const dark = choice.value === "dark" || (choice.value === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  choice.value = dark ? "light" : "dark";
  choice.dispatchEvent(new Event("change", { bubbles: true }));
}

function here() {
  const typed = words.value.trim().toLowerCase();
  return HERE.filter(({ title }) => typed && title.toLowerCase().includes(typed)).map((one) => ({ ...one, kind: "Action" }));
}

const acts = new WeakMap();

function optionOf({ kind, title, url, act }, i) {
  const option = document.createElement("li");
  option.id = `palette-option-${i}`;
  option.setAttribute("role", "option");
  acts.set(option, act ?? (() => location.assign(url)));
  const [name, of] = [document.createElement("span"), document.createElement("span")];
  name.textContent = title;
  of.textContent = kind;
  of.className = "faint";
  option.append(name, " ", of);
  return option;
}

function leave(option = chosen()) {
  entered = false;
  if (!option) return;
  palette.close();
  acts.get(option)();
}

function show(answered) {
  const found = [...answered, ...here()];
  looking = false;
  list.replaceChildren(...found.map(optionOf));
  words.setAttribute("aria-expanded", String(found.length > 0));
  choose(list.firstElementChild);
  const nothing = words.value.trim() ? "Nothing matches." : "";
  status.textContent = found.length ? `${found.length} found` : nothing;
  status.classList.toggle("visually-hidden", found.length > 0);
  if (entered) leave();
}

async function find() {
  asked?.abort();
  asked = new AbortController();
  const url = `${palette.dataset.url}?${new URLSearchParams({ q: words.value })}`;
  try {
    const answer = await fetch(url, { signal: asked.signal });
    if (answer.redirected) location.reload(); // signed out meanwhile
    else show((await answer.json()).found);
  } catch (error) {
    if (error.name === "AbortError") return;
    show([]);
    status.textContent = "The server cannot be reached.";
  }
}

function open(dialog) {
  if (!document.querySelector("dialog:modal")) dialog.showModal();
}

words.addEventListener("focus", () => {
  words.select();
  find();
});
words.addEventListener("input", () => {
  [looking, entered] = [true, false];
  asked?.abort();
  clearTimeout(pause);
  pause = setTimeout(find, PAUSE_MS);
});
words.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  const all = options();
  const here = all.indexOf(chosen());
  const to = { ArrowDown: all[here + 1] ?? all[0], ArrowUp: all.at(here < 1 ? -1 : here - 1) };
  if (event.key in to) choose(to[event.key]);
  else if (event.key !== "Enter") return;
  else if (looking) entered = true;
  else leave();
  event.preventDefault();
});
list.addEventListener("click", (event) => {
  const option = event.target.closest("[role=option]");
  if (option) leave(option);
});
palette.addEventListener("close", () => (entered = false)); // closing cancels the pending choice
palette.addEventListener("click", (event) => {
  if (event.target === palette) palette.close(); // its backdrop
});

// Shortcuts

setting.checked = localStorage.getItem(SETTING) !== "off";
setting.addEventListener("change", () => {
  localStorage.setItem(SETTING, setting.checked ? "on" : "off");
});

function typing(target) {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable]");
}

const SINGLE = {
  "/": () => document.querySelector("main [type=search]"),
  "?": () => shortcuts,
};

function pressed(event) {
  if (event.timeStamp < goUntil) {
    goUntil = 0;
    const shown = [...shortcuts.querySelectorAll("dt")].find((keys) => keys.textContent === `g ${event.key}`);
    const link = shown?.nextElementSibling.querySelector("a");
    link?.click();
    return Boolean(link);
  }
  if (event.key === "g") {
    goUntil = event.timeStamp + GO_MS;
    return true;
  }
  const target = SINGLE[event.key]?.();
  if (target instanceof HTMLDialogElement) open(target);
  else target?.focus();
  return Boolean(target);
}

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.isComposing) return;
  const command = (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey;
  if (command && event.key.toLowerCase() === "k") {
    event.preventDefault();
    open(palette);
    return;
  }
  const modified = event.ctrlKey || event.metaKey || event.altKey;
  const elsewhere = typing(event.target) || document.querySelector("dialog:modal");
  if (modified || elsewhere || !setting.checked) return;
  if (pressed(event)) event.preventDefault();
});

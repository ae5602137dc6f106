// The model of a pane: a combobox over the models that the page lists, in groups. Any other name can
// be typed.
import { element } from "./elements.js";

const groups = JSON.parse(document.getElementById("models")?.textContent ?? "[]");
const badges = new Map(groups.flatMap(([, models]) => models));
let made = 0;

// The badge of a listed model; undefined of any other.
export function badgeOf(name) {
  return badges.get(name);
}

export class Picker {
  #list = element("div", "models");

  // The input is the combobox; its list is put behind it. A choice fires a `change` event.
  constructor(input) {
    this.input = input;
    this.#list.id = `models-${++made}`;
    this.#list.hidden = true;
    this.#list.setAttribute("role", "listbox");
    this.#list.setAttribute("aria-label", "Models");
    for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": this.#list.id })) input.setAttribute(name, value);
    input.after(this.#list);
    input.addEventListener("click", () => this.#open(""));
    input.addEventListener("input", () => this.#open(input.value));
    input.addEventListener("blur", () => this.#close());
    input.addEventListener("keydown", (event) => this.#pressed(event));
    this.#list.addEventListener("mousedown", (event) => event.preventDefault()); // the focus stays in the input
    this.#list.addEventListener("click", (event) => this.#choose(event.target.closest("[role=option]")));
  }

  get #options() {
    return [...this.#list.querySelectorAll("[role=option]")];
  }

  get #active() {
    return this.#list.querySelector("[aria-selected=true]");
  }

  // Lists the models whose names have all of these words.
  #open(text) {
    const words = text.toLowerCase().split(/\s+/);
    const has = ([name]) => words.every((word) => name.toLowerCase().includes(word));
    const found = groups.map(([title, models]) => [title, models.filter(has)]).filter(([, models]) => models.length);
    const [only, another] = found.flatMap(([, models]) => models);
    if (!only || (only[0] === text && !another)) return this.#close();
    this.#list.replaceChildren(...found.map((group, at) => this.#group(group, at)));
    this.#list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.#activate(text ? this.#options[0] : this.#options.find((one) => one.dataset.name === this.input.value));
  }

  #close() {
    this.#list.hidden = true;
    this.#list.replaceChildren();
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  #group([title, models], at) {
    const group = element("div");
    const head = group.appendChild(element("p", "faint", title));
    head.id = `${this.#list.id}-${at}`;
    head.setAttribute("role", "presentation");
    group.setAttribute("role", "group");
    group.setAttribute("aria-labelledby", head.id);
    group.append(...models.map(([name, badge], i) => this.#option(name, badge, `${head.id}-${i}`)));
    return group;
  }

  #option(name, badge, id) {
    const option = element("div");
    option.id = id;
    option.setAttribute("role", "option");
    option.dataset.name = name;
    option.append(element("span", "", name), " ", element("span", "faint", badge));
    return option;
  }

  #activate(option) {
    for (const one of this.#options) one.setAttribute("aria-selected", String(one === option));
    if (!option) return this.input.removeAttribute("aria-activedescendant");
    this.input.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  }

  #choose(option) {
    if (!option) return;
    this.input.value = option.dataset.name;
    this.#close();
    this.input.dispatchEvent(new Event("change", { bubbles: true }));
  }

  #pressed(event) {
    if (event.isComposing || event.ctrlKey || event.metaKey) return;
    const isOpen = !this.#list.hidden;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (isOpen) this.#move(event.key === "ArrowDown" ? 1 : -1);
      else this.#open("");
    } else if (isOpen && event.key === "Enter") this.#choose(this.#active);
    else if (isOpen && event.key === "Escape") this.#close();
    else return;
    event.preventDefault(); // Escape would also stop the answers
  }

  #move(step) {
    const all = this.#options;
    const here = all.indexOf(this.#active);
    this.#activate(all.at((here < 0 && step < 0 ? 0 : here) + step) ?? all[0]);
  }
}

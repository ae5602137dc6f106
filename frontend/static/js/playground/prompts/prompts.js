// Saved prompts: to use one, with its variables, and to save the message as another.
import { element } from "../elements.js";
import { Shelf } from "./shelf.js";

const VARIABLE = /\{\{\s*([\w-]+)\s*\}\}/g;

export const variablesOf = (...texts) => [...new Set(texts.flatMap((text) => [...text.matchAll(VARIABLE)].map(([, name]) => name)))];
export const filled = (text, values) => text.replace(VARIABLE, (whole, name) => values[name] ?? whole);

export class Prompts extends Shelf {
  // `home` has: text(), system(), use({ text, system }).
  constructor(home, known) {
    super("prompts", known);
    this.home = home;
    this.using = this.dialog.querySelector("#use-prompt");
    this.using.addEventListener("submit", (event) => this.#use(event));
  }

  open() {
    this.using.hidden = true;
    this.saving.elements.text.value = this.home.text();
    super.open();
  }

  // A prompt with variables asks for their values first.
  async choose({ id }) {
    const one = await this.ask(`${this.saving.action}/${id}`);
    if (!one) return;
    this.chosen = one;
    const names = variablesOf(one.text, one.system);
    if (!names.length) return this.#finish({});
    const fields = names.map((name) => {
      const field = element("label", "field", name);
      const input = field.appendChild(document.createElement("input"));
      [input.type, input.name, input.required] = ["text", name, true];
      return field;
    });
    this.using.querySelector("#use-title").textContent = one.name;
    this.using.querySelector("#variables").replaceChildren(...fields);
    this.using.hidden = false;
    this.using.querySelector("input").focus();
  }

  body() {
    const body = new FormData(this.saving);
    body.set("system", this.home.system());
    return body;
  }

  #use(event) {
    event.preventDefault();
    this.#finish(Object.fromEntries(new FormData(this.using)));
  }

  #finish(values) {
    const { text, system } = this.chosen;
    this.dialog.close();
    this.home.use({ text: filled(text, values), system: filled(system, values) });
  }
}

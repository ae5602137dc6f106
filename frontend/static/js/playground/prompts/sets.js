// Prompt sets: to run one over the open panes, and to save one.
import { button } from "../elements.js";
import { Shelf } from "./shelf.js";

const BETWEEN = /^\s*-{3,}\s*$/m; // prompts are separated by a line of dashes

export class Sets extends Shelf {
  // `home` has: begin(set) and asked(), the models of its panes.
  constructor(home, known) {
    super("sets", known);
    this.home = home;
  }

  note({ count }) {
    return `${count} prompt${count === 1 ? "" : "s"}`;
  }

  more(one) {
    return one.by ? [] : [button("Edit", () => this.#edit(one), `Edit ${one.name}`)];
  }

  async choose(one) {
    if (await this.run(one.id)) this.dialog.close();
  }

  // Open this set's run, which a button starts: its answers are billed.
  async run(id) {
    const models = new URLSearchParams(this.home.asked().map((model) => ["model", model]));
    const found = await this.ask(`${this.saving.action}/${id}?${models}`);
    if (found) this.home.begin({ ...found, panes: this.home.panesOver(found.models) });
    return found;
  }

  body() {
    const body = new FormData(this.saving);
    body.set("prompts", JSON.stringify(body.get("prompts").split(BETWEEN)));
    return body;
  }

  async #edit(one) {
    const found = await this.ask(`${this.saving.action}/${one.id}`);
    if (!found) return;
    const { name, prompts, shared } = this.saving.elements;
    [name.value, prompts.value, shared.checked] = [found.name, found.prompts.join("\n---\n"), found.shared];
    this.saving.closest("details").open = true;
    prompts.focus();
  }
}

// The votes of a prompt set's run, saved on the server with each vote, and the models' scores over all
// runs of the set.
import { element } from "../elements.js";

const COLUMNS = ["Model", "Preferred", "Tie", "Votes", "Runs"];

export class Ballot {
  #wanted = false; // there are votes that the server does not have
  #saving = false;

  // `run` has: id, of the set; key; panes; votes.
  constructor(run, scores) {
    Object.assign(this, { run, scores });
    this.shown = element("section", "scores");
    this.problem = element("p", "notice bad");
    this.problem.setAttribute("role", "alert");
    this.#show();
  }

  // One request at a time, each with all votes of the run.
  async cast() {
    this.#wanted = true;
    if (this.#saving) return;
    this.#saving = true;
    while (this.#wanted) {
      this.#wanted = false;
      await this.#save();
    }
    this.#saving = false;
    this.#show();
  }

  async #save() {
    const form = document.querySelector("#sets-dialog form.keep");
    const body = new FormData();
    body.set("csrfmiddlewaretoken", form.elements.csrfmiddlewaretoken.value);
    body.set("run", this.run.key);
    body.set("models", JSON.stringify(this.run.panes.map(({ model }) => model)));
    body.set("choices", JSON.stringify(this.run.votes));
    this.problem.textContent = "Your votes could not be saved. Saving is retried with your next vote.";
    try {
      const answer = await fetch(`${form.action}/${this.run.id}/votes`, { method: "POST", body, redirect: "error" });
      const result = await answer.json();
      if (answer.ok) [this.scores, this.problem.textContent] = [result.scores, ""];
      else this.problem.textContent = `Your votes could not be saved. ${result.message}`;
    } catch {
      // unreachable, signed out or deleted: the problem stays as set above
    }
  }

  #show() {
    this.problem.hidden = !this.problem.textContent;
    this.shown.hidden = this.problem.hidden && !this.scores.length;
    const parts = [this.problem];
    if (this.scores.length) parts.push(element("h3", "", "Votes of all runs of this set"), this.#table());
    this.shown.replaceChildren(...parts);
  }

  #table() {
    const table = element("table");
    const head = table.createTHead().insertRow();
    COLUMNS.forEach((title, at) => {
      const cell = head.appendChild(element("th", at ? "num" : "", title));
      cell.scope = "col";
    });
    const body = table.createTBody();
    for (const { model, wins, ties, voted, runs } of this.scores) {
      const row = body.insertRow();
      row.append(element("th", "mono", model));
      row.firstChild.scope = "row";
      const preferred = `${wins} (${Math.round((100 * wins) / voted)}%)`;
      row.append(...[preferred, ties, voted, runs].map((figure) => element("td", "num", String(figure))));
    }
    return wrapped(table);
  }
}

// Lets a table that is too wide scroll by itself, also by keyboard.
function wrapped(table) {
  const wrap = element("div", "table-wrap");
  wrap.tabIndex = 0;
  wrap.setAttribute("role", "region");
  wrap.setAttribute("aria-label", "Votes");
  wrap.append(table);
  return wrap;
}

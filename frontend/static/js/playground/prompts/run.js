// A prompt set run over the panes: each prompt goes to all of them at the same time, as a conversation
// of its own, and the user votes for the better answer.
import { duration, money } from "../../format.js";
import { Calls } from "../calls.js";
import { button, element, footed } from "../elements.js";
import { footline } from "../figures.js";
import { Answer } from "../json.js";
import { Ballot } from "./ballot.js";

const LETTERS = "ABCD";
const TIE = "tie";

export class Run {
  #asking = new Map(); // id -> resolves the wait for this answer
  #shown = []; // by prompt and pane: { body, foot, node }

  // `home` has: link, closed(). `panes` are requests without messages; `scores` those of earlier runs;
  // `key`, `answers` (by prompt and pane) and `votes` (by prompt) are those of a run to continue.
  constructor(home, root, { id, key, name, prompts, panes, answers, votes, scores }) {
    Object.assign(this, { home, root, id, name, prompts, panes });
    this.key = key ?? crypto.randomUUID();
    this.answers = answers ?? prompts.map(() => panes.map(() => ({})));
    this.votes = votes ?? prompts.map(() => "");
    this.ballot = new Ballot(this, scores ?? []);
    this.#open();
  }

  stored() {
    const { id, key, name, prompts, panes, answers, votes } = this;
    return { id, key, name, prompts, panes, answers, votes, scores: this.ballot.scores };
  }

  get running() {
    return this.#asking.size > 0;
  }

  // Ask what is not answered yet, one prompt after another.
  async start() {
    this.wanted = true;
    for (let at = 0; at < this.prompts.length && this.wanted; at++) {
      const asked = this.panes.map((_, pane) => this.#ask(at, pane));
      this.#tell();
      await Promise.all(asked);
    }
    this.wanted = false;
    this.#tell();
  }

  stop() {
    this.wanted = false;
    for (const id of this.#asking.keys()) this.home.link.stop(id);
  }

  #ask(at, pane) {
    const answer = this.answers[at][pane];
    if (answer.done) return null;
    const known = answer.id; // it was being generated when the page was left
    Object.assign(answer, { id: known ?? crypto.randomUUID(), text: "", calls: [], failed: "" });
    const shown = this.#shown[at][pane];
    shown.said.replaceChildren();
    shown.notes.replaceChildren(element("p", "faint", "Waiting"));
    const writer = new Answer(shown.said);
    return new Promise((resolve) => {
      this.#asking.set(answer.id, resolve);
      const listen = (message) => this.#heard(answer, { ...shown, writer }, message);
      const request = { ...this.panes[pane], messages: [{ role: "user", content: this.prompts[at] }] };
      if (known) this.home.link.resume(known, listen);
      else this.home.link.start(answer.id, request, listen);
    });
  }

  #heard(answer, { writer, calls, notes }, message) {
    if (message.type === "phase") return;
    if (message.type === "delta") {
      notes.replaceChildren();
      answer.text += message.text;
      if (message.text) writer.add(message.text);
      calls.add(message.calls ?? []);
      answer.calls = calls.list;
      return;
    }
    writer.end();
    calls.end();
    this.#asking.get(answer.id)?.();
    this.#asking.delete(answer.id);
    delete answer.id;
    if (message.type === "error") answer.failed = message.message;
    else if (message.finish_reason === "cancelled") answer.failed = "Stopped.";
    else Object.assign(answer, { done: true, foot: footline(message), cost: message.cost, ttft_ms: message.ttft_ms });
    if (answer.failed) this.wanted = false; // the rest waits until the user has seen the error
    noted(notes, answer);
    this.#tell();
  }

  close() {
    this.stop();
    this.root.hidden = true;
    this.root.replaceChildren();
    this.home.closed();
  }

  #vote(at, choice) {
    this.votes[at] = choice;
    this.#tell();
    this.ballot.cast();
  }

  // --- what is seen ------------------------------------------------------------------------------

  #open() {
    this.status = element("p", "quiet");
    this.status.setAttribute("role", "status");
    this.go = button("Run", () => this.start());
    this.halt = button("Stop", () => this.stop());
    this.go.className = "button primary";
    this.halt.className = "button danger";
    const head = element("header");
    const title = head.appendChild(element("div"));
    title.append(element("h2", "", this.name), this.status);
    title.firstChild.id = "run-title";
    head.append(element("div", "actions"));
    head.lastChild.append(button("Back to the panes", () => this.close()), this.halt, this.go);
    this.sums = element("dl", "stats");
    const list = element("ol", "trials");
    list.append(...this.prompts.map((text, at) => this.#trial(text, at)));
    this.root.replaceChildren(head, this.sums, this.ballot.shown, list);
    this.root.hidden = false;
    this.#tell();
  }

  #trial(text, at) {
    const trial = element("li");
    const answers = element("div", "answers");
    this.#shown[at] = this.panes.map((_, pane) => this.#answer(answers, at, pane));
    trial.append(element("h3", "visually-hidden", `Prompt ${at + 1}`), element("p", "asked", text), answers);
    if (this.panes.length > 1) trial.append(this.#choice(at));
    return trial;
  }

  #answer(into, at, pane) {
    const box = into.appendChild(element("article", "answer"));
    box.append(element("h4", "", this.#title(pane)));
    const [said, called, notes] = ["said", "calls", "notes"].map((name) => box.appendChild(element("div", name)));
    const shown = { said, notes, calls: new Calls(called) };
    const answer = this.answers[at][pane];
    if (answer.done || answer.failed) {
      const writer = new Answer(said);
      writer.add(answer.text);
      writer.end();
      shown.calls.show(answer.calls);
      noted(notes, answer);
    }
    return shown;
  }

  #title(pane) {
    const { model } = this.panes[pane];
    return this.panes.length > 1 ? `${LETTERS[pane]} · ${model}` : model;
  }

  #choice(at) {
    const better = this.panes.length > 2 ? "best" : "better";
    const choices = [...this.panes.map((_, pane) => [LETTERS[pane], `${LETTERS[pane]} ${better}`]), [TIE, "Tie"]];
    const field = element("fieldset", "vote");
    field.append(element("legend", "visually-hidden", `Which answer to prompt ${at + 1} is ${better}?`));
    for (const [value, title] of choices) {
      const label = field.appendChild(element("label"));
      const input = label.appendChild(document.createElement("input"));
      Object.assign(input, { type: "radio", name: `vote-${at}`, value, checked: this.votes[at] === value });
      input.addEventListener("change", () => this.#vote(at, value));
      label.append(element("span", "", title));
    }
    return field;
  }

  #tell() {
    const done = this.answers.filter((some) => some.every((one) => one.done)).length;
    const whole = done === this.prompts.length;
    this.status.textContent = `${done} of ${this.prompts.length} prompts answered`;
    this.go.hidden = this.running || whole;
    this.go.textContent = done ? "Run the rest" : `Run ${this.prompts.length} over ${this.panes.length} pane${this.panes.length > 1 ? "s" : ""}`;
    this.halt.hidden = !this.running;
    this.sums.replaceChildren(...this.panes.map((_, pane) => this.#sum(pane)), ...(this.panes.length > 1 ? [this.#undecided()] : []));
  }

  #sum(pane) {
    const done = this.answers.map((some) => some[pane]).filter((one) => one.done);
    const cost = done.reduce((sum, one) => sum + one.cost, 0);
    const ttfts = done.map((one) => one.ttft_ms).filter((ms) => ms !== null).sort((a, b) => a - b);
    const figures = [done.length && money(cost / 1e12), ttfts.length && `TTFT p50 ${duration(ttfts[Math.floor((ttfts.length - 1) / 2)])}`];
    return sum(this.#title(pane), this.panes.length > 1 ? this.#votes(LETTERS[pane]) : done.length, figures.filter(Boolean).join(" · "));
  }

  #undecided() {
    const open = this.#votes("");
    return sum("Tie", this.#votes(TIE), open ? `${open} without a vote` : "all voted");
  }

  #votes(choice) {
    return this.votes.filter((one) => one === choice).length;
  }
}

function sum(title, figure, note) {
  const shown = element("div", "stat");
  shown.append(element("dt", "", title), element("dd", "", String(figure)), element("dd", "note", note));
  return shown;
}

function noted(notes, { failed, foot }) {
  notes.replaceChildren(failed ? element("p", "notice bad", failed) : footed(foot));
}

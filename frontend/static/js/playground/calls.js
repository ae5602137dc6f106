// The tool calls of an answer, as cards, and their results.
import { colour } from "./markdown.js";
import { button, element } from "./elements.js";

export class Calls {
  list = []; // in OpenAI's format

  constructor(root) {
    this.root = root;
  }

  clear() {
    this.list = [];
    this.root.replaceChildren();
  }

  // Parts as they come: { index, id, name, arguments }.
  add(parts) {
    for (const { index = 0, id = "", name = "", arguments: text = "" } of parts) {
      const call = (this.list[index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
      call.id += id;
      call.function.name += name;
      call.function.arguments += text;
    }
    if (parts.length) this.#draw();
  }

  end() {
    this.#draw();
    for (const code of this.root.querySelectorAll("code[data-language]")) colour(code);
  }

  show(calls) {
    this.list = calls;
    this.end();
  }

  // The form for the results of the calls; `send` is called with the results by call id.
  form(send) {
    const form = element("form", "results");
    for (const call of this.list) form.append(field(call));
    form.append(element("div", "actions"));
    form.lastChild.append(button(this.list.length > 1 ? "Send results" : "Send result", () => form.requestSubmit()));
    form.querySelector(".button").className = "button primary";
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      send(Object.fromEntries(new FormData(form)));
    });
    return form;
  }

  #draw() {
    this.root.replaceChildren(...this.list.map((call) => card(`Calls ${call.function.name}`, call.function.arguments)));
  }
}

// The results that were given to the calls of an answer.
export function resultsOf({ calls }, { results }) {
  const shown = element("div", "calls");
  const known = calls.filter((call) => call.id in results);
  shown.append(...known.map((call) => card(`Result of ${call.function.name}`, results[call.id])));
  for (const code of shown.querySelectorAll("code[data-language]")) colour(code);
  return shown;
}

function field(call) {
  const label = element("label", "", `Result of ${call.function.name}`);
  const text = label.appendChild(element("textarea"));
  [text.name, text.rows, text.required] = [call.id, 2, true];
  return label;
}

// JSON is indented and highlighted, any other text is shown as it is.
function card(title, text) {
  const shown = element("div", "call");
  const block = document.createElement("pre");
  const code = block.appendChild(element("code", "", text));
  try {
    code.textContent = JSON.stringify(JSON.parse(text), null, 2);
    code.dataset.language = "json";
  } catch {
    block.tabIndex = 0; // so that it scrolls by keyboard
  }
  shown.append(element("p", "call-title", title), block);
  return shown;
}

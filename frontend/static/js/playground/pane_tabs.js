// The tabs of the panes, of which a narrow window shows one at a time.
import { step } from "../tabs.js";
import { element } from "./elements.js";
import { NARROW } from "./narrow.js";

export class PaneTabs {
  #shown = null; // the pane whose tab is selected
  #tabs = new Map(); // pane -> its tab

  constructor(list) {
    this.list = list;
    list.addEventListener("keydown", (event) => {
      const tabs = [...this.#tabs.values()];
      const to = step(event, tabs);
      if (to === undefined) return;
      tabs[to].click();
      tabs[to].focus();
    });
    NARROW.addEventListener("change", () => this.tell([...this.#tabs.keys()]));
  }

  // Show this pane, also where only one is.
  show(pane) {
    this.#shown = pane;
    this.tell([...this.#tabs.keys()]);
  }

  // The panes, in their order, or what they are named and do, changed.
  tell(panes) {
    const known = this.#tabs;
    this.#tabs = new Map(panes.map((pane) => [pane, known.get(pane) ?? this.#tab(pane)]));
    if (!panes.includes(this.#shown)) this.#shown = panes.at(0);
    const tabs = NARROW.matches && panes.length > 1;
    this.list.hidden = !tabs;
    if (panes.some((pane, at) => this.list.children[at] !== this.#tabs.get(pane)) || this.list.children.length !== panes.length) this.list.replaceChildren(...this.#tabs.values()); // else the focus stays
    panes.forEach((pane, at) => this.#mark(pane, at, tabs));
  }

  #tab(pane) {
    const tab = element("button", "button");
    tab.type = "button";
    tab.setAttribute("role", "tab");
    tab.addEventListener("click", () => this.show(pane));
    return tab;
  }

  #mark(pane, at, tabs) {
    const tab = this.#tabs.get(pane);
    const selected = pane === this.#shown;
    pane.id = `pane-${at + 1}`;
    pane.hidden = tabs && !selected;
    pane.setAttribute("role", tabs ? "tabpanel" : "group");
    tab.setAttribute("aria-controls", pane.id);
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    tab.textContent = `${at + 1} · ${pane.field("model").value.trim() || "no model"}`;
    tab.dir = "auto";
    tab.toggleAttribute("data-busy", Boolean(pane.running));
  }
}

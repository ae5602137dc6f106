// Shows one section of code at a time, by the ARIA tabs pattern. Without this script all are shown.
const REMEMBERED = "code-tab";

// The tab to which a key goes from the focused one, if it is a key of tabs.
export function step(event, tabs) {
  const here = tabs.indexOf(event.target);
  const last = tabs.length - 1;
  const right = here === last ? 0 : here + 1;
  const left = here === 0 ? last : here - 1;
  const to = { ArrowRight: right, ArrowLeft: left, Home: 0, End: last }[event.key];
  if (to !== undefined) event.preventDefault();
  return to;
}

class CodeTabs extends HTMLElement {
  connectedCallback() {
    this.sections = [...this.querySelectorAll(":scope > section")];
    const list = document.createElement("div");
    list.className = "segments";
    list.setAttribute("role", "tablist");
    list.setAttribute("aria-label", "Language");
    this.tabs = this.sections.map((section, i) => this.#tab(section, i));
    list.append(...this.tabs);
    list.addEventListener("keydown", (event) => this.#move(event));
    this.prepend(list);
    const known = this.tabs.findIndex((tab) => tab.textContent === localStorage.getItem(REMEMBERED));
    this.#show(Math.max(known, 0));
  }

  #tab(section, i) {
    const heading = section.querySelector("h3");
    const tab = document.createElement("button");
    tab.type = "button";
    tab.className = "button";
    tab.id = `code-tab-${i}`;
    tab.textContent = heading.textContent;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", (section.id = `code-panel-${i}`));
    tab.addEventListener("click", () => this.#show(i));
    heading.hidden = true;
    section.setAttribute("role", "tabpanel");
    section.setAttribute("aria-labelledby", tab.id);
    return tab;
  }

  #show(chosen) {
    for (const [i, tab] of this.tabs.entries()) {
      tab.setAttribute("aria-selected", String(i === chosen));
      tab.tabIndex = i === chosen ? 0 : -1;
      this.sections[i].hidden = i !== chosen;
    }
    localStorage.setItem(REMEMBERED, this.tabs[chosen].textContent);
  }

  #move(event) {
    const to = step(event, this.tabs);
    if (to === undefined) return;
    this.#show(to);
    this.tabs[to].focus();
  }
}
customElements.define("code-tabs", CodeTabs);

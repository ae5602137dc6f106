// The drawer with the settings of one pane: beside the panes where there is room, over the page elsewhere.
import { NARROW } from "./narrow.js";

const REMEMBERED = "playground-settings";

export class Drawer {
  pane = null; // whose settings are shown

  constructor(root) {
    this.root = root;
    root.querySelector('[data-act="close"]').addEventListener("click", () => this.close());
    root.addEventListener("close", () => root.open || this.#closed(true)); // by the browser's back gesture
    root.addEventListener("click", (event) => event.target === root && this.close()); // its backdrop
    root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented) return;
      event.preventDefault(); // it would also stop the answers
      this.close();
    });
    NARROW.addEventListener("change", () => this.#moved());
  }

  // Open it if it was left open; the focus stays where it is.
  restore(pane) {
    if (NARROW.matches || localStorage.getItem(REMEMBERED) !== "open") return;
    this.#fill(pane);
    this.root.setAttribute("open", "");
  }

  toggle(pane) {
    if (this.pane === pane) this.close();
    else this.open(pane);
  }

  // Show this pane's settings, with the focus on a wrong field, else on the first.
  open(pane) {
    this.#fill(pane);
    if (!this.root.open) NARROW.matches ? this.root.showModal() : this.root.show();
    localStorage.setItem(REMEMBERED, "open");
    const field = pane.settings.querySelector('[aria-invalid="true"]') ?? pane.settings.querySelector("[data-field]");
    field.focus();
  }

  close() {
    if (!this.root.open) return;
    const inside = this.root.contains(document.activeElement);
    this.root.close();
    this.#closed(inside);
  }

  // Panes were added or removed: another number, or another pane to show.
  tell(panes) {
    if (!this.pane) return;
    if (!panes.includes(this.pane)) return this.#fill(panes[0]);
    const number = panes.length > 1 ? ` of pane ${panes.indexOf(this.pane) + 1}` : "";
    this.root.querySelector("h2").textContent = `Settings${number}`;
  }

  #fill(pane) {
    this.pane?.tellSettings(false);
    this.pane?.settings.remove();
    this.pane = pane;
    this.root.append(pane.settings);
    pane.tellSettings(true);
    this.tell(pane.home.all);
  }

  #closed(focus) {
    const pane = this.pane;
    if (!pane) return;
    this.pane = null;
    pane.settings.remove();
    pane.tellSettings(false);
    localStorage.setItem(REMEMBERED, "closed");
    if (focus) pane.querySelector('[data-act="settings"]').focus();
  }

  // The window became narrow or wide: a dialog is either modal or not, so it is opened anew.
  #moved() {
    if (!this.root.open) return;
    const pane = this.pane;
    this.pane = null;
    this.root.close();
    this.open(pane);
  }
}

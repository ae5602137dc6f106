// Saves a conversation on the server once its user asks for it, and reports the state.
class SignedOut extends Error {}

export class Keeping {
  #wanted = false;
  saving = false; // a change is being saved

  // `home` has `conversation()`; `kept` is { url, revision } or null; `told(state, message)` is called
  // with `kept`, `saving` or `failed`.
  constructor(home, { create, csrf, kept, told }) {
    Object.assign(this, { home, create, csrf, kept, told });
  }

  // From now on it is kept up to date, including changes made before this request is answered.
  async begin() {
    this.#wanted = false;
    const made = await this.#post(this.create, this.home.conversation());
    if (!made) return null;
    this.kept = made;
    if (this.#wanted) this.changed();
    return made;
  }

  // Something changed. One request at a time, so that revisions stay in order.
  async changed() {
    this.#wanted = true;
    if (!this.kept || this.saving) return;
    this.saving = true;
    while (this.#wanted) {
      this.#wanted = false;
      const { revision } = this.kept;
      const saved = await this.#post(`${this.kept.url}save`, { ...this.home.conversation(), revision });
      if (saved) Object.assign(this.kept, saved);
    }
    this.saving = false;
  }

  async #post(url, body) {
    this.told("saving");
    let message = "The server could not be reached. Saving is retried with the next change.";
    try {
      const headers = { "Content-Type": "application/json", "X-CSRFToken": this.csrf };
      const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(body), redirect: "manual" });
      if (answer.type === "opaqueredirect") throw new SignedOut();
      const said = await answer.json();
      if (answer.ok) {
        this.told("kept");
        return said;
      }
      message = said.message;
    } catch (error) {
      if (error instanceof SignedOut) message = "You are signed out. Sign in to continue.";
      else if (error instanceof SyntaxError) message = "You can no longer save here. Reload the page.";
    }
    this.told("failed", message);
    return null;
  }
}

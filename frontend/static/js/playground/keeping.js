// Saves a conversation on the server once its user asks for it, and reports the state.
const CHANGED = "conversation_changed";
const UNREACHABLE = "The server could not be reached. Saving is retried with the next change.";
const FORBIDDEN = "You can no longer save here. Reload the page.";
const SIGNED_OUT = "You are signed out. Sign in to continue.";

export class Keeping {
  #wanted = false;
  #saving = false;

  // `home` has `conversation()`; `kept` is { url, revision } or null; `onState(state, message)` is called
  // with `kept`, `saving` or `failed`. With `unsure`, the answer to a save has not arrived: the stored
  // revision may be the next one.
  constructor(home, { create, csrf, kept, onState }) {
    Object.assign(this, { home, create, csrf, kept, onState, unsure: false });
  }

  // Whether a draft of this tab, { revision, unsure }, is newer than what the page has. It is not if the
  // page has a revision that this tab did not save: another tab has continued the conversation. The
  // page can also have an older one, if it was read just before the last save.
  takes({ revision = 0, unsure = false }) {
    if (!this.kept) return true;
    if (this.kept.revision > revision + Number(unsure)) return false;
    this.unsure = unsure && this.kept.revision <= revision;
    this.kept.revision = Math.max(this.kept.revision, revision);
    return true;
  }

  // From now on it is kept up to date, including changes made before this request is answered.
  async begin() {
    this.#wanted = false;
    const made = await this.#post(this.create, this.home.conversation());
    if (!made?.url) return null;
    this.kept = made;
    if (this.#wanted) this.changed();
    return made;
  }

  // Something changed. One request at a time, so that revisions stay in order.
  async changed() {
    this.#wanted = true;
    if (!this.kept || this.#saving) return;
    this.#saving = true;
    while (this.#wanted) {
      this.#wanted = false;
      await this.#save();
    }
    this.#saving = false;
  }

  async #save() {
    const { kept, unsure } = this;
    this.unsure = true;
    const body = { ...this.home.conversation(), revision: kept.revision };
    const result = await this.#post(`${kept.url}save`, body, unsure ? CHANGED : null);
    if (!result) return;
    const stored = unsure && result.code === CHANGED; // the save before, whose answer was lost
    this.unsure = unsure && !stored && !result.revision;
    if (stored) [kept.revision, this.#wanted] = [kept.revision + 1, true];
    else kept.revision = result.revision ?? kept.revision;
  }

  // Returns the answer, also a refusal, which it tells unless it has the `expected` code; null if none
  // arrived.
  async #post(url, body, expected = null) {
    this.onState("saving");
    try {
      const headers = { "Content-Type": "application/json", "X-CSRFToken": this.csrf };
      const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(body), redirect: "manual" });
      const result = answer.type === "opaqueredirect" ? { message: SIGNED_OUT } : await answer.json();
      if (answer.ok) this.onState("kept");
      else if (result.code !== expected || !expected) this.onState("failed", result.message);
      return result;
    } catch (error) {
      this.onState("failed", error instanceof SyntaxError ? FORBIDDEN : UNREACHABLE);
      return null;
    }
  }
}

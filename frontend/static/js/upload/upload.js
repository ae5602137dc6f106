// <upload-drop>: sends an adapter's files as one archive, and continues after a broken connection.
import { Refused, ResumableUpload } from "./resumable.js";
import { packed } from "./tar.js";

const CONFIG = "adapter_config.json";
const WEIGHTS = [/^adapter_model\.safetensors$/i, /^adapter_model-\d+-of-\d+\.safetensors$/i, /^adapters\.safetensors$/i]; // whole, in shards, of mlx-lm
const PICKLES = /^adapter_model\.(bin|pt|pth|ckpt|pkl)$/;
const RATE_OVER_MS = 5000;

const size = (bytes) => {
  const units = ["bytes", "KB", "MB", "GB"];
  const power = Math.min(3, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
  return `${(bytes / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
};

function time(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

// Of a whole folder (PEFT writes a README.md as well) only the adapter's files are sent.
function adapterAmong(files) {
  const config = files.filter((file) => file.name.toLowerCase() === CONFIG);
  const weights = WEIGHTS.map((name) => files.filter((file) => name.test(file.name))).find((found) => found.length);
  return config.length && weights ? [config[0], ...weights] : files;
}

function filesOf(entry) {
  return new Promise((resolve, reject) => {
    if (entry.isFile) entry.file((file) => resolve([file]), reject);
    else entry.createReader().readEntries((inner) => resolve(Promise.all(inner.filter((one) => one.isFile).map(filesOf))), reject);
  });
}

async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  if (!entries.length) return [...transfer.files];
  return (await Promise.all(entries.map(filesOf))).flat(2);
}

class UploadDrop extends HTMLElement {
  connectedCallback() {
    this.form = this.querySelector("form");
    this.picker = this.querySelector("[type=file]");
    this.zone = this.querySelector(".drop");
    this.list = this.querySelector(".chosen");
    this.sending = this.querySelector(".sending");
    this.bar = this.querySelector("progress");
    this.status = this.querySelector(".sending [role=status]");
    this.alert = this.querySelector("[role=alert]");
    this.button = this.querySelector("[type=submit]");
    this.begun = this.querySelector(".begun");
    this.confirm = this.querySelector("[data-confirm]");
    this.files = [];
    this.picker.addEventListener("change", () => this.choose([...this.picker.files]));
    for (const kind of ["dragover", "dragleave", "drop"]) this.zone.addEventListener(kind, (event) => this.drag(event));
    this.form.addEventListener("submit", (event) => {
      if (event.submitter?.formMethod === "dialog") return;
      event.preventDefault();
      this.begin();
    });
    this.form.addEventListener("input", () => this.hint());
    this.querySelector("[formmethod=dialog]").addEventListener("click", () => this.cancel());
    const dialog = this.closest("dialog");
    dialog.addEventListener("cancel", (event) => this.busy && event.preventDefault()); // the Escape key
    dialog.addEventListener("close", () => this.busy && this.stop());
    addEventListener("beforeunload", (event) => this.busy && event.preventDefault());
    if (this.picker.files.length) this.choose([...this.picker.files]); // chosen before this script was loaded
  }

  get busy() {
    return Boolean(this.upload);
  }

  async drag(event) {
    event.preventDefault();
    this.zone.toggleAttribute("data-over", event.type === "dragover");
    if (event.type === "drop" && !this.busy) this.choose(await dropped(event.dataTransfer));
  }

  choose(files) {
    this.files = adapterAmong(files);
    this.confirm.hidden = true; // it was for other files
    this.confirm.querySelector("input").checked = false;
    const lines = this.files.map((file) => {
      const line = document.createElement("li");
      line.textContent = `${file.name} · ${size(file.size)}`;
      return line;
    });
    this.list.replaceChildren(...lines);
    this.fail(this.objection());
    this.hint();
  }

  // Checks that can be done before gigabytes are sent; the server does all of them again.
  objection() {
    const names = this.files.map((file) => file.name.toLowerCase());
    if (!names.length) return "Choose the adapter's files.";
    const archive = names.length === 1 && /\.(zip|tar|tar\.gz|tgz)$/i.test(names[0]);
    const weights = names.some((name) => WEIGHTS.some((one) => one.test(name)));
    const pickle = names.find((name) => PICKLES.test(name));
    if (pickle && !weights) return `${pickle} is a pickle, which could run code and is not read. Save the adapter as adapter_model.safetensors: PEFT's save_pretrained does so by default.`;
    const missing = [];
    if (!names.includes(CONFIG)) missing.push(CONFIG);
    if (!weights) missing.push("adapter_model.safetensors");
    if (!archive && missing.length) return `${missing.join(" and ")} ${missing.length > 1 ? "are" : "is"} missing.`;
    const bytes = this.files.reduce((sum, file) => sum + file.size, 0);
    const most = Number(this.dataset.maxBytes);
    return bytes > most ? `The files are ${size(bytes)}, and this server accepts at most ${size(most)}.` : "";
  }

  get given() {
    return new FormData(this.form);
  }

  // Identifies this upload, if the page was left and the same files are chosen again.
  get key() {
    const files = this.files.map((file) => [file.name, file.size, file.lastModified]);
    return `upload ${JSON.stringify([this.dataset.tenant, this.given.get("name"), ...files])}`;
  }

  async hint() {
    const { key } = this;
    const begun = this.files.length > 0 && !this.busy && (await ResumableUpload.begun(key));
    if (key === this.key) this.begun.hidden = !begun || this.busy;
  }

  async begin() {
    if (this.busy) return;
    const objection = this.objection();
    this.fail(objection);
    if (objection) return;
    const [only] = this.files;
    const archive = this.files.length === 1;
    const given = this.given;
    const metadata = { adapter: given.get("name"), filename: archive ? only.name : "adapter.tar" };
    for (const name of ["base_model", "confirm_base_model"]) if (given.get(name)) metadata[name] = given.get(name);
    this.upload = new ResumableUpload({
      address: `${this.dataset.uploads}?tenant=${this.dataset.tenant}`,
      blob: archive ? only : packed(this.files),
      metadata,
      key: this.key,
      token: given.get("csrfmiddlewaretoken"),
      progress: (bytes) => this.progress(bytes),
      waiting: (seconds) => this.broke(seconds),
    });
    this.samples = [];
    this.bar.removeAttribute("value");
    this.say("Contacting the server");
    this.show(true);
    try {
      this.leave(await this.upload.send());
    } catch (error) {
      this.refused(error);
    }
  }

  progress(bytes) {
    if (!this.busy) return;
    const total = this.upload.blob.size;
    this.share = bytes / total;
    this.bar.value = this.share;
    const now = performance.now();
    this.samples = this.samples.filter(([at]) => now - at < RATE_OVER_MS).concat([[now, bytes]]);
    const [since, from] = this.samples[0];
    const rate = now - since > 500 ? ((bytes - from) / (now - since)) * 1000 : 0;
    const pace = rate > 0 ? ` · ${size(rate)}/s · ${time((total - bytes) / rate)} left` : "";
    this.say(bytes < total ? `${size(bytes)} of ${size(total)}${pace}` : "Upload complete. The server is checking the files");
  }

  broke(seconds) {
    this.samples = [];
    const where = this.share === undefined ? "" : ` at ${Math.floor(this.share * 100)}%`;
    this.say(`Connection lost${where}. Resuming in ${seconds} s, or when the network is back.`);
  }

  leave({ version, known }) {
    this.upload = undefined;
    this.say("Stored");
    location.assign(`${this.dataset.page}/${version.adapter}/versions/${version.number}${known ? "?known" : ""}`);
  }

  refused(error) {
    if (!this.busy) return; // stopped by the user
    this.upload = undefined;
    this.show(false);
    if (!(error instanceof Refused)) throw error;
    this.fail([...new Set([error.message, ...error.fields])].join("\n"), error.code);
    this.confirm.hidden = error.code !== "base_model_unconfirmed";
  }

  // Cancel it, here and on the server.
  cancel() {
    const upload = this.upload;
    this.stop();
    upload?.cancel().then(() => this.hint());
  }

  // Stop sending. What has arrived is kept for a day.
  stop() {
    const upload = this.upload;
    this.upload = undefined;
    upload?.pause();
    this.show(false);
    this.fail("");
  }

  show(sending) {
    this.sending.hidden = !sending;
    this.button.disabled = sending;
    this.picker.disabled = sending;
    this.hint();
  }

  say(text) {
    this.status.textContent = text;
  }

  fail(text, code) {
    this.alert.hidden = !text;
    this.alert.textContent = code ? `${text} (${code})` : text;
  }
}
customElements.define("upload-drop", UploadDrop);

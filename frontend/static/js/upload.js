// <upload-drop>: sends an adapter's files to the management API, with progress and new attempts.
//
// The server names a version by its content, so sending the same files again is always safe: if the
// first attempt did arrive and only its answer was lost, the second finds the version that it made.
const WANTED = ["adapter_config.json", "adapter_model.safetensors"];
const WAITS_S = [1, 2, 5, 10, 20];
const PASSING = new Set([0, 502, 503, 504]); // the network's or a proxy's fault, not the adapter's

const size = (bytes) => {
  const units = ["bytes", "KB", "MB", "GB"];
  const power = Math.min(3, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
  return `${(bytes / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
};

// Of a whole folder (PEFT writes a README.md as well) only the adapter's two files are sent.
function adapterAmong(files) {
  const two = WANTED.map((name) => files.find((file) => file.name === name));
  return two.every(Boolean) ? two : files;
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
    this.status = this.querySelector("[role=status]");
    this.alert = this.querySelector("[role=alert]");
    this.button = this.querySelector("[type=submit]");
    this.files = [];
    this.picker.addEventListener("change", () => this.choose([...this.picker.files]));
    for (const kind of ["dragover", "dragleave", "drop"]) this.zone.addEventListener(kind, (event) => this.drag(event));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.begin();
    });
    this.querySelector("[data-cancels]").addEventListener("click", () => this.stop());
    this.closest("dialog").addEventListener("cancel", () => this.stop()); // the Escape key
    addEventListener("beforeunload", (event) => this.busy && event.preventDefault());
  }

  get busy() {
    return Boolean(this.request || this.waiting);
  }

  async drag(event) {
    event.preventDefault();
    this.zone.toggleAttribute("data-over", event.type === "dragover");
    if (event.type === "drop" && !this.busy) this.choose(await dropped(event.dataTransfer));
  }

  choose(files) {
    this.files = adapterAmong(files);
    const lines = this.files.map((file) => {
      const line = document.createElement("li");
      line.textContent = `${file.name} · ${size(file.size)}`;
      return line;
    });
    this.list.replaceChildren(...lines);
    this.fail(this.objection());
  }

  // What can be said before gigabytes are sent; the server checks all of it again.
  objection() {
    const names = this.files.map((file) => file.name);
    if (!names.length) return "Choose the adapter's files.";
    const archive = names.length === 1 && /\.(zip|tar)$/i.test(names[0]);
    const missing = WANTED.filter((name) => !names.includes(name));
    if (!archive && missing.length) return `${missing.join(" and ")} ${missing.length > 1 ? "are" : "is"} missing.`;
    const bytes = this.files.reduce((sum, file) => sum + file.size, 0);
    const most = Number(this.dataset.maxBytes);
    return bytes > most ? `files: ${size(bytes)} is above this server's ${size(most)}.` : "";
  }

  begin() {
    if (this.busy) return;
    const objection = this.objection();
    this.fail(objection);
    if (objection) return;
    this.attempt = 0;
    this.send();
  }

  send() {
    const given = new FormData(this.form);
    const body = new FormData();
    if (given.get("base_model")) body.append("base_model", given.get("base_model"));
    for (const file of this.files) body.append("files", file, file.name);
    const request = (this.request = new XMLHttpRequest());
    request.open("POST", `${this.dataset.api}${encodeURIComponent(given.get("name"))}/versions?tenant=${this.dataset.tenant}`);
    request.setRequestHeader("X-CSRFToken", given.get("csrfmiddlewaretoken"));
    request.setRequestHeader("Accept", "application/json");
    request.responseType = "json";
    request.upload.addEventListener("progress", (event) => this.progress(event.loaded, event.total));
    request.addEventListener("load", () => this.answered(request));
    request.addEventListener("error", () => this.answered(request));
    this.show(true);
    request.send(body);
  }

  progress(sent, total) {
    this.sent = total ? sent / total : 0;
    this.bar.value = this.sent;
    this.say(sent < total ? `${size(sent)} of ${size(total)} sent` : "All sent; the server is storing it");
  }

  answered(request) {
    this.request = undefined;
    if (request.status === 200 || request.status === 201) this.leave(request.response, request.status === 200);
    else if (PASSING.has(request.status) && this.attempt < WAITS_S.length) this.again();
    else this.refused(request);
  }

  leave(version, known) {
    this.say("Stored");
    location.assign(`${this.dataset.page}/${version.adapter}/versions/${version.number}${known ? "?known" : ""}`);
  }

  again() {
    const seconds = WAITS_S[this.attempt++];
    const where = this.sent === 1 ? "before the answer" : `at ${Math.round((this.sent ?? 0) * 100)} %`;
    this.say(`The connection broke ${where}. Sending from the start in ${seconds} s (attempt ${this.attempt + 1} of ${WAITS_S.length + 1}).`);
    this.waiting = setTimeout(() => {
      this.waiting = undefined;
      this.send();
    }, seconds * 1000);
  }

  // A problem of RFC 9457, or whatever a proxy in between may answer.
  refused(request) {
    const problem = request.response;
    const lost = "The server cannot be reached. Check the connection, then press Upload again: nothing is stored twice.";
    const fields = (problem?.errors ?? []).map((error) => `${error.field}: ${error.message}`);
    const detail = problem?.detail ?? (request.status ? `The server answered ${request.status}.` : lost);
    this.show(false);
    this.fail([...new Set([detail, ...fields])].join("\n"), problem?.code);
  }

  stop() {
    clearTimeout(this.waiting);
    this.waiting = undefined;
    this.request?.abort();
    this.request = undefined;
    this.show(false);
    this.fail("");
  }

  show(sending) {
    this.sending.hidden = !sending;
    this.button.disabled = sending;
    this.picker.disabled = sending;
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

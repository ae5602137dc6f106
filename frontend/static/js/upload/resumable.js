// Sends one Blob by tus 1.0 (tus.io): after any failure, only what the server lacks is sent.
//
// The address of an upload is stored under `key` until the upload ends, so that it can continue after
// the page was left. Requests are authenticated by cookies.
const PART_BYTES = 32 << 20; // per request: the most that is lost with a proxy that buffers requests
const WAITS_S = [1, 2, 4, 8, 15, 30];
const ATTEMPTS = 20; // in a row without progress
const LOOK_AGAIN_S = 1; // while the server checks what it has
const TUS = { Accept: "application/json", "Tus-Resumable": "1.0.0" };
const AGAIN = new Set([0, 408, 409, 423, 425, 502, 503, 504]); // 409: ask for the offset, and continue there

// The server's final refusal: a problem of RFC 9457, or the response of a proxy.
export class Refused extends Error {
  constructor(status, problem) {
    const lost = "The server cannot be reached. Press Upload again later to resume where it stopped.";
    super(problem?.detail ?? (status ? `The server answered ${status}.` : lost));
    this.status = status;
    this.code = problem?.code;
    this.fields = (problem?.errors ?? []).map((error) => `${error.field}: ${error.message}`);
  }
}

const base64 = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));

export class ResumableUpload {
  // `progress(bytes)` is called with how much has arrived, `waiting(seconds)` before each pause.
  constructor({ address, blob, metadata, key, token, progress, waiting }) {
    Object.assign(this, { address, blob, metadata, key, token, progress, waiting });
    this.offset = 0;
    this.aborter = new AbortController();
  }

  // Whether the server has the beginning of an upload under this key, and waits for the rest.
  static async begun(key) {
    const url = localStorage.getItem(key);
    if (!url) return false;
    const response = await fetch(url, { headers: TUS }).catch(() => undefined);
    if (response?.status === 404) localStorage.removeItem(key); // it has expired
    return response?.ok ? parsed(await response.text())?.state === "receiving" : false;
  }

  // The server's final answer about the upload; raises Refused, or an AbortError after `pause`.
  async send() {
    let failures = 0;
    for (;;) {
      const before = this.offset;
      try {
        return await this.attempt();
      } catch (error) {
        if (!(error instanceof Refused) || !AGAIN.has(error.status)) throw error;
        failures = this.offset > before ? 0 : failures + 1;
        if (failures >= ATTEMPTS) throw error;
        await this.wait(WAITS_S[Math.min(failures, WAITS_S.length - 1)]);
      }
    }
  }

  // Stop sending; a later upload under the same key continues.
  pause() {
    this.aborter.abort();
  }

  // Stop, and delete the upload on the server.
  async cancel() {
    this.pause();
    const url = localStorage.getItem(this.key);
    localStorage.removeItem(this.key);
    if (url) await fetch(url, { method: "DELETE", headers: this.headers() }).catch(() => undefined); // else it expires
  }

  async attempt() {
    let upload = (await this.found()) ?? (await this.begin());
    while (upload.state === "receiving" || upload.state === "checking") {
      this.offset = upload.offset;
      this.progress(this.offset);
      if (upload.state === "receiving") await this.append();
      else await this.sleep(LOOK_AGAIN_S);
      upload = await this.found();
      if (!upload) throw new Refused(409);
    }
    localStorage.removeItem(this.key);
    if (upload.state === "refused") throw new Refused(upload.problem.status, upload.problem);
    return upload;
  }

  // The upload under this key; undefined if there is none any more.
  async found() {
    const url = localStorage.getItem(this.key);
    if (!url) return undefined;
    const [response, body] = await this.ask(url, "GET");
    if (response.ok && body?.length === this.blob.size) return body;
    if (response.status !== 404 && !response.ok) throw new Refused(response.status, body);
    localStorage.removeItem(this.key);
    return undefined;
  }

  async begin() {
    const metadata = Object.entries(this.metadata).map(([key, value]) => `${key} ${base64(value)}`);
    const headers = { "Upload-Length": String(this.blob.size), "Upload-Metadata": metadata.join(",") };
    const [response, body] = await this.ask(this.address, "POST", headers);
    if (!response.ok) throw new Refused(response.status, body);
    const url = new URL(response.headers.get("Location"));
    localStorage.setItem(this.key, url.pathname + url.search); // a proxy may use another host name
    return { state: "receiving", offset: 0 };
  }

  // The response with its JSON.
  async ask(url, method, headers = {}) {
    const { signal } = this.aborter;
    try {
      const response = await fetch(url, { method, headers: { ...this.headers(), ...headers }, signal });
      return [response, parsed(await response.text())];
    } catch (error) {
      signal.throwIfAborted();
      throw new Refused(0);
    }
  }

  headers() {
    return { ...TUS, "X-CSRFToken": this.token };
  }

  // One request with the next part; not by fetch, which does not report progress.
  append() {
    this.aborter.signal.throwIfAborted();
    const offset = this.offset;
    const request = new XMLHttpRequest();
    const abort = () => request.abort();
    this.aborter.signal.addEventListener("abort", abort);
    return new Promise((resolve, reject) => {
      request.open("PATCH", localStorage.getItem(this.key));
      const headers = { ...this.headers(), "Upload-Offset": offset, "Content-Type": "application/offset+octet-stream" };
      for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
      request.responseType = "json";
      request.upload.addEventListener("progress", (event) => this.progress(offset + event.loaded));
      request.addEventListener("load", () => {
        if (request.status === 204 || request.status === 404) resolve(); // 404: `found` handles it
        else reject(new Refused(request.status, request.response));
      });
      request.addEventListener("error", () => reject(new Refused(0)));
      request.addEventListener("abort", () => reject(this.aborter.signal.reason));
      request.send(this.blob.slice(offset, offset + PART_BYTES));
    }).finally(() => this.aborter.signal.removeEventListener("abort", abort));
  }

  // Wait for this time, or until the network is back.
  wait(seconds) {
    this.waiting(seconds);
    return this.sleep(seconds);
  }

  sleep(seconds) {
    const { promise, resolve, reject } = Promise.withResolvers();
    const timer = setTimeout(resolve, seconds * 1000);
    const abort = () => reject(this.aborter.signal.reason);
    addEventListener("online", resolve, { once: true });
    this.aborter.signal.addEventListener("abort", abort, { once: true });
    return promise.finally(() => {
      clearTimeout(timer);
      removeEventListener("online", resolve);
      this.aborter.signal.removeEventListener("abort", abort);
    });
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined; // empty, or a page of a proxy
  }
}

// Passkeys: before a form with data-passkey is sent, the browser creates or presents a credential.
const FAILURES = {
  NotAllowedError: "It was cancelled, or it took too long. Try again.",
  InvalidStateError: "This device already has a passkey for your account.",
  SecurityError: "Browsers offer passkeys only over HTTPS and on localhost.",
};

// What the page, or for signing in the form's own address, asks the browser for.
async function options(form) {
  if (!("asks" in form.dataset)) return JSON.parse(document.getElementById("passkey-options").textContent);
  const answer = await fetch(form.action, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(answer.status === 429 ? "Too many attempts. Try again in a minute." : "The server cannot be reached.");
  return answer.json();
}

async function create(form) {
  const { publicKey } = (await options(form)).creation_options;
  const alone = form.elements.passwordless.checked;
  Object.assign(publicKey.authenticatorSelection, {
    residentKey: alone ? "required" : "discouraged",
    requireResidentKey: alone,
    userVerification: alone ? "required" : "preferred",
  });
  return navigator.credentials.create({ publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(publicKey) });
}

async function get(form) {
  const { publicKey } = (await options(form)).request_options;
  return navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(publicKey) });
}

async function send(form) {
  const error = form.querySelector("[data-passkey-error]");
  error.hidden = true;
  try {
    if (!window.PublicKeyCredential?.parseRequestOptionsFromJSON) throw new Error("This browser does not support passkeys.");
    const credential = await (form.dataset.passkey === "create" ? create : get)(form);
    form.elements.credential.value = JSON.stringify(credential);
    form.submit();
  } catch (failure) {
    error.textContent = FAILURES[failure.name] ?? failure.message;
    error.hidden = false;
  }
}

for (const form of document.querySelectorAll("form[data-passkey]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
}

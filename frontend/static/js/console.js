// On every page: the theme, the menu on small screens, dialogs and copy buttons.
function choose(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
}

// The menu on small screens; only signed-in users have one.
function openMenu(open) {
  document.getElementById("sidebar")?.toggleAttribute("data-open", open);
  document.querySelector("[data-opens=sidebar]")?.setAttribute("aria-expanded", String(open));
}

document.addEventListener("change", (event) => {
  if (event.target.id === "theme-choice") choose(event.target.value);
  if (event.target.matches("[data-go]")) location.assign(event.target.value);
});

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) {
    event.preventDefault(); // without this script it leads to a page with the dialog open
    const target = document.getElementById(opener.dataset.opens);
    if (target instanceof HTMLDialogElement) target.showModal();
    else openMenu(!target.hasAttribute("data-open"));
    return;
  }
  event.target.closest("[data-closes]")?.closest("dialog")?.close();
  if (!event.target.closest("#sidebar")) openMenu(false);
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") openMenu(false);
});

// Delegated, so that it works for buttons added later too.
document.addEventListener("pointerover", (event) => {
  const time = event.target.closest("time[datetime]");
  if (time) time.title = new Date(time.dateTime).toLocaleString();
});

class CopyButton extends HTMLElement {
  connectedCallback() {
    const button = this.querySelector("button");
    const label = button.textContent;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(this.querySelector("pre, code, input").textContent.trim());
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = label), 1500);
    });
  }
}
customElements.define("copy-button", CopyButton);

const theme = document.getElementById("theme-choice");
if (theme) theme.value = localStorage.getItem("theme") ?? "system";
// A dialog that the server opened to show errors; it gets the focus here.
for (const dialog of document.querySelectorAll("dialog[open]")) {
  dialog.close();
  dialog.showModal();
}

// Lists: filters (<form data-instant>) apply as they are changed, and are kept in the URL; rows are
// selected for bulk actions (`components/bulk.html`).
import { morphing } from "./morphing.js";

const TYPING_MS = 250;
let typing; // the timer of a pause in typing
let asked = 0;

document.addEventListener("input", ({ target }) => {
  const form = instant(target);
  if (!form || !target.matches("[type=search], [type=text]")) return;
  clearTimeout(typing);
  typing = setTimeout(() => follow(form), TYPING_MS);
});

document.addEventListener("change", ({ target }) => {
  if (target.matches("[data-all]")) for (const row of rowsOf(target.form)) row.checked = target.checked;
  if (target.matches("[name=row], [data-all]")) tellChosen();
  const form = instant(target);
  if (form && !target.matches("[type=search], [type=text]")) follow(form);
});

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-instant]")) return;
  event.preventDefault();
  follow(event.target);
});

const instant = (field) => field.form?.closest("form[data-instant]");

function addressOf(form) {
  const address = new URL(form.getAttribute("action") ?? location.pathname, location.href);
  const given = [...new FormData(form)].filter(([, value]) => value);
  address.search = new URLSearchParams(given);
  return address;
}

// Pages with charts (`data-instant="page"`) are loaded again, all others are updated in place.
async function follow(form) {
  clearTimeout(typing);
  const [address, mine] = [addressOf(form), ++asked];
  if (form.dataset.instant === "page") return location.assign(address);
  try {
    const answer = await fetch(address);
    const html = await answer.text();
    if (mine !== asked) return;
    const main = new DOMParser().parseFromString(html, "text/html").querySelector("main");
    if (answer.redirected || answer.status >= 500 || !main) throw new Error(answer.statusText);
    Idiomorph.morph(document.querySelector("main"), main.innerHTML, morphing);
  } catch {
    if (mine === asked) location.assign(address);
    return;
  }
  history.replaceState(history.state, "", address);
  tellChosen();
  dispatchEvent(new Event("live"));
}

const rowsOf = (form) => [...form.elements].filter((field) => field.name === "row");

function tellChosen() {
  for (const form of document.querySelectorAll("form.bulk")) {
    const rows = rowsOf(form);
    const chosen = rows.filter((row) => row.checked).length;
    form.toggleAttribute("data-any", chosen > 0);
    form.querySelector("[data-count]").textContent = chosen;
    const all = [...form.elements].find((field) => field.matches("[data-all]"));
    [all.checked, all.indeterminate] = [chosen > 0 && chosen === rows.length, chosen > 0 && chosen < rows.length];
  }
}
addEventListener("live", tellChosen); // rows came or went
tellChosen();

// Says across the page that its connection is lost, once that has lasted for a moment.
import { clock } from "./format.js";

const INTERRUPTED_MS = 3000; // a connection that is back within it is only an indicator's matter
let timer;
let told;

export function interrupted() {
  timer ??= setTimeout(tell, INTERRUPTED_MS);
}

export function restored() {
  clearTimeout(timer);
  timer = undefined;
  told?.remove();
}

function tell() {
  const since = clock.format(Date.now() - INTERRUPTED_MS);
  told = document.createElement("p");
  told.className = "offline";
  told.setAttribute("role", "alert");
  told.textContent = `No connection to the gateway since ${since}. This page may be out of date. Trying again…`;
  (document.querySelector("main") ?? document.body).prepend(told);
}

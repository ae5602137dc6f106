// Shows a notice across the page once its connection has been lost for a moment.
import { clock } from "./format.js";

const INTERRUPTED_MS = 3000; // for a shorter interruption the state indicator is enough
let timer;
let notice;

export function interrupted() {
  timer ??= setTimeout(tell, INTERRUPTED_MS);
}

export function restored() {
  clearTimeout(timer);
  timer = undefined;
  notice?.remove();
}

function tell() {
  const since = clock.format(Date.now() - INTERRUPTED_MS);
  notice = document.createElement("p");
  notice.className = "offline";
  notice.setAttribute("role", "alert");
  notice.textContent = `No connection to the gateway since ${since}. This page may be out of date. Trying again…`;
  (document.querySelector("main") ?? document.body).prepend(notice);
}

// Says across the page that its connection is lost, once that has lasted for a moment.
import { clock } from "./format.js";

const INTERRUPTED_MS = 3000; // a connection that is back within it is only an indicator's matter
let timer;

export function interrupted() {
  timer ??= setTimeout(tell, INTERRUPTED_MS);
}

export function restored() {
  clearTimeout(timer);
  timer = undefined;
  document.getElementById("offline").hidden = true;
}

function tell() {
  const told = document.getElementById("offline");
  const since = clock.format(Date.now() - INTERRUPTED_MS);
  told.textContent = `No connection to the gateway since ${since}. This page may be out of date. Trying again…`;
  told.hidden = false;
}
